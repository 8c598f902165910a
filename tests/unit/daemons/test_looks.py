"""Looks at many tasks go to their vendor together."""

from __future__ import annotations

import asyncio

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import TaskReport, TaskState
from qtandem.daemons.looks import GAP_S, Looks


class Vendor:
    """Answers when it is let; for all tasks that are asked about, or for `most` of them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.most = 1000
        self.ended: set[str] = set()
        self.under_way = self.most_under_way = 0

    async def __call__(self, resource, tasks, others, secrets):
        self.asked.append((resource, list(tasks)))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await self.go.wait()
        self.under_way -= 1
        told = {task: TaskReport(TaskState.COMPLETED, task) for task in others if task in self.ended}
        for task in tasks[: self.most]:
            state = TaskState.COMPLETED if task in self.ended else TaskState.RUNNING
            told[task] = QtandemError("no-such-run", task) if task == "lost" else TaskReport(state, task)
        return told


def _untold(resource, task):
    pytest.fail(f"{task} of {resource} was told of")


async def test_those_that_come_meanwhile_go_in_one_call():
    vendor = Vendor()
    looks = Looks(vendor, _untold)
    vendor.go.clear()
    first = asyncio.create_task(looks.report("fez", "t0", None))
    await asyncio.sleep(0.001)
    others = [asyncio.create_task(looks.report("fez", f"t{number}", None)) for number in range(1, 50)]
    await asyncio.sleep(2 * GAP_S)
    vendor.go.set()
    reports = await asyncio.gather(first, *others)
    assert [report.reason for report in reports] == [f"t{number}" for number in range(50)]
    assert [len(tasks) for _, tasks in vendor.asked] == [1, 49]
    assert vendor.most_under_way == 1


async def test_an_error_is_that_of_its_task_alone():
    looks = Looks(Vendor(), _untold)
    good, bad = await asyncio.gather(
        looks.report("fez", "t1", None), looks.report("fez", "lost", None), return_exceptions=True
    )
    assert isinstance(good, TaskReport)
    assert isinstance(bad, QtandemError)


async def test_what_an_answer_leaves_out_is_asked_again():
    vendor = Vendor()
    vendor.most = 3
    looks = Looks(vendor, _untold)
    reports = await asyncio.gather(*(looks.report("fez", f"t{number}", None) for number in range(7)))
    assert len(reports) == 7
    assert [len(tasks) for _, tasks in vendor.asked] == [7, 4, 1]


async def test_resources_and_credentials_do_not_wait_for_each_other():
    vendor = Vendor()
    looks = Looks(vendor, _untold)
    vendor.go.clear()
    calls = [("fez", None), ("fez", {"key": "ann's"}), ("torino", None)]
    waiting = [asyncio.create_task(looks.report(resource, "t", secrets)) for resource, secrets in calls]
    await asyncio.sleep(0.01)
    assert vendor.under_way == 3
    vendor.go.set()
    await asyncio.gather(*waiting)


async def test_one_who_leaves_takes_nothing_from_the_others():
    vendor = Vendor()
    looks = Looks(vendor, _untold)
    vendor.go.clear()
    leaver, stayer = (asyncio.create_task(looks.report("fez", name, None)) for name in ("a", "b"))
    await asyncio.sleep(0.001)
    leaver.cancel()
    vendor.go.set()
    assert (await stayer).reason == "b"
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_a_call_that_fails_fails_for_all_that_it_was_for():
    async def ask(resource, tasks, others, secrets):
        raise QtandemError("vendor-timeout", "no answer")

    looks = Looks(ask, _untold)
    errors = await asyncio.gather(*(looks.report("fez", name, None) for name in "ab"), return_exceptions=True)
    assert {error.code for error in errors} == {"vendor-timeout"}


async def test_the_end_of_a_task_is_told_by_a_look_for_another_and_needs_no_look():
    vendor, told = Vendor(), []
    looks = Looks(vendor, lambda resource, task: told.append((resource, task)))
    assert not (await looks.report("fez", "mine", None)).state.final
    vendor.ended = {"mine", "theirs"}
    await looks.report("fez", "other", None)
    assert told == [("fez", "mine")]
    calls = len(vendor.asked)
    assert (await looks.report("fez", "mine", None)).state.final
    assert len(vendor.asked) == calls
    await looks.report("fez", "mine", None)
    assert len(vendor.asked) == calls + 1


async def test_no_other_credential_learns_of_it():
    vendor, told = Vendor(), []
    looks = Looks(vendor, lambda resource, task: told.append(task))
    await looks.report("fez", "mine", {"key": "ann's"})
    vendor.ended = {"mine"}
    await looks.report("fez", "other", {"key": "bob's"})
    await looks.report("torino", "other", {"key": "ann's"})
    assert told == []
