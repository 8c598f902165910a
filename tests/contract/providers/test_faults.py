"""Every provider against every fault that its fake vendor can be told to have, through a real worker process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Observation
from qtandem.core.providers.base import TaskState
from qtandem.core.providers.classify import CLASSES, Class

DEADLINE_S = 12.0
OUTAGE = {"vendor-error", "vendor-timeout"}
WAIT = {"not-available", *OUTAGE}
# What a poll may end with, besides a fact. 404 is about the device, or one of its parts.
STATUSES: dict[int, set[str]] = {
    400: {"internal", "bad-credentials", "bad-config"},
    401: {"bad-credentials"},
    403: {"policy", "bad-credentials"},
    404: {"policy", "bad-config", "unsupported", "no-such-run"},
    409: {"policy", "not-available"},
    423: {"not-available"},
    429: {"not-available"},
    500: OUTAGE,
    503: OUTAGE,
    504: OUTAGE,
}
FAULTS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("latency", {"seconds": 0.05}, set()),
    ("drop", {}, OUTAGE),
    ("malformed", {}, OUTAGE),
    ("garbage", {}, OUTAGE | {"bad-credentials"}),
    ("unknown", {}, set()),
]
FIELDS = ("status", "queue_length", "length_queue", "queue", "n_pending_jobs", "deviceQueueInfo", "health", "lanes")


@pytest.fixture
def poll(rig, workers):
    async def poll() -> Observation | QtandemError:
        try:
            return await workers.call(rig.spec.resource, "observe", deadline_s=DEADLINE_S)
        except QtandemError as error:
            return error

    return poll


@pytest.fixture
def servers(rig):
    if not rig.servers:
        pytest.skip("the simulated device has no server: its own faults are in tests/unit/providers")
    return rig.servers


def heal(servers) -> None:
    for server in servers:
        server.heal()


async def test_a_poll_is_a_fact_or_an_error_that_says_whose_fault_it_is(rig, poll, servers):
    wrong = []
    for status, codes in STATUSES.items():
        for retry_after in (None, 7) if status in (429, 503) else (None,):
            for server in servers:
                server.fail(status, retry_after=retry_after)
            said = await poll()
            heal(servers)
            if isinstance(said, Observation):
                good = said.availability is not Availability.ONLINE
            else:
                good = said.code in codes and bool(said.message)
                good = good and said.retryable is (CLASSES[said.code] in (Class.TRANSIENT, Class.OUTAGE))
            if not good:
                wrong.append((status, retry_after, str(said)))
    assert wrong == []
    assert (await poll()).availability is Availability.ONLINE
    assert [write for server in servers for write in server.writes()] == []


async def test_answers_that_are_odd_or_none_cost_a_fact_at_most(rig, poll, servers):
    wrong = []
    for kind, detail, codes in FAULTS:
        for server in servers:
            server.fault(kind, **detail)
        said = await poll()
        heal(servers)
        if isinstance(said, QtandemError):
            good = said.code in codes
        else:
            good = not codes or said.availability is not Availability.ONLINE
        if not good:
            wrong.append((kind, str(said)))
    assert wrong == []
    assert (await poll()).availability is Availability.ONLINE


@pytest.mark.parametrize("kind", ["null", "missing"])
async def test_a_number_that_is_not_said_is_not_zero_and_no_status_is_unknown(rig, poll, servers, kind):
    if isinstance(getattr(servers[0], "queue", None), int):
        servers[0].queue = 5
    for field in FIELDS:
        for server in servers:
            server.fault(kind, fields=(field,))
        said = await poll()
        heal(servers)
        if isinstance(said, QtandemError):
            assert said.code in OUTAGE, (field, str(said))
        elif field in ("queue_length", "length_queue", "queue", "n_pending_jobs", "deviceQueueInfo"):
            assert said.queue != 0, field
    for server in servers:
        server.fault(
            kind, fields=("status", "state", "name", "deviceStatus", "availability", "is_accessible", "health")
        )
    said = await poll()
    heal(servers)
    assert isinstance(said, QtandemError) or said.availability is not Availability.ONLINE


@pytest.mark.parametrize("skew_s", [-86_400.0, 86_400.0])
async def test_a_vendor_whose_clock_is_wrong_is_still_one(rig, workers, servers, skew_s):
    for server in servers:
        server.skew_s = skew_s

    async def call(method, *args):
        return await workers.call(rig.spec.resource, method, *args, purpose="execute", deadline_s=DEADLINE_S)

    assert (await workers.call(rig.spec.resource, "observe")).availability is Availability.ONLINE
    token = await call("acquire", "run-1", 1)
    task = await call("task_start", token, "task-1", rig.payload)
    async with asyncio.timeout(40):
        while not (report := await call("task_status", task)).state.final:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert report.state is TaskState.COMPLETED
    await call("release", token)


async def test_each_step_of_a_task_says_whose_fault_a_failure_is_and_works_when_it_is_over(rig, workers, servers):
    """Nothing is sent twice, whatever the vendor answers in between."""

    async def call(method, *args):
        return await workers.call(rig.spec.resource, method, *args, purpose="execute", deadline_s=DEADLINE_S)

    async def struck(status, method, *args):
        for server in servers:
            server.fail(status)
        with pytest.raises(QtandemError) as caught:
            await call(method, *args)
        heal(servers)
        return caught.value

    rig.slow()
    token = await call("acquire", "run-1", 1)
    for status in (429, 401):
        error = await struck(status, "task_start", token, f"task-{status}", rig.payload)
        assert CLASSES[error.code] in (Class.TRANSIENT, Class.OUTAGE, Class.SITE), (status, str(error))
    task = await call("task_start", token, "task-1", rig.payload)
    assert await call("task_start", token, "task-1", rig.payload) == task
    for status, codes in ((401, {"bad-credentials"}), (429, WAIT), (503, WAIT)):
        error = await struck(status, "task_status", task)
        assert error.code in codes, (status, str(error))
    for _ in range(2):
        await call("task_stop", task)
    await call("release", token)
    await call("release", token)
    assert len([row for row in rig.log() if row["event"] == "task_start"]) == 1


async def test_polling_writes_nothing_as_the_vendor_sees_it(rig, workers, servers):
    for _ in range(2):
        for method in ("observe", "target", "metadata"):
            await workers.call(rig.spec.resource, method)
        for method in ("find_session", "find_task"):
            await workers.call(rig.spec.resource, method, "never-seen", purpose="execute")
    assert [f"{each.method} {each.path}" for server in servers for each in server.writes()] == []
    assert rig.log() == []
