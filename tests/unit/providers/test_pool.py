"""Nothing that a provider does can touch the daemon."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Observation
from qtandem.core.providers.base import ProviderSpec, TaskState
from qtandem.core.providers.pool import Workers
from qtandem.core.providers.secrecy import redact
from tests.fakes import providers

SECRET = "sk-0123456789abcdef-secret"


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kernel_view(pid, name):
    """What /proc shows of a process; nothing where it is closed even to us, who may not trace it."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except PermissionError:
        return b""


async def until(condition, within=10.0):
    # Other processes tell us nothing when they end.
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def order(workers, resource, what, **more):
    return await workers.call(resource, "task_logs", what, **more)


async def refused(workers, resource, what, **more):
    with pytest.raises(QtandemError) as caught:
        await order(workers, resource, what, **more)
    return caught.value


async def test_a_hung_call_times_out_and_those_behind_it_are_served_by_a_new_child(pool):
    workers = pool(a={})
    first = int(await order(workers, "a", "pid"))
    hung = asyncio.create_task(refused(workers, "a", "hang", deadline_s=0.5))
    await asyncio.sleep(0)
    behind = await asyncio.gather(*(order(workers, "a", "pid") for _ in range(3)))
    assert (await hung).code == "vendor-timeout"
    assert len(set(behind)) == 1
    assert int(behind[0]) != first
    assert gone(first)
    assert workers.stats()[0].kills == 1


async def test_a_hung_resource_does_not_delay_another(pool):
    workers = pool(a={}, b={"api_key": "x1"})
    await order(workers, "b", "pid")
    hung = asyncio.create_task(refused(workers, "a", "hang", deadline_s=5))
    await asyncio.sleep(0.1)
    await order(workers, "b", "pid", deadline_s=4)
    assert not hung.done()
    hung.cancel()


async def test_what_a_hung_provider_started_dies_with_it(pool):
    workers = pool(a={})
    offspring = int(await order(workers, "a", "offspring"))
    await refused(workers, "a", "hang", deadline_s=0.2)
    await until(lambda: gone(offspring))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("crash", "SIGSEGV"),
        ("leave:7", "status 7"),
        ("long:70000000", "answered too much"),
        ("flood", "out of memory"),
        ("break_in", "broke the protocol"),
        ("fail", "KeyError"),
    ],
)
async def test_a_broken_provider_is_a_vendor_error_and_the_next_call_works(pool, what, words):
    workers = pool(a={}, memory_bytes=384 << 20)
    error = await refused(workers, "a", what)
    assert error.code == "vendor-error"
    assert error.retryable
    assert words in f"{error.message} {error.cause}"
    assert int(await order(workers, "a", "pid")) > 0


async def test_a_flood_stays_in_the_child(pool):
    workers = pool(a={}, memory_bytes=384 << 20)
    before = psutil.Process().memory_info().rss
    await refused(workers, "a", "flood")
    await refused(workers, "a", "chatter:20000000")
    assert psutil.Process().memory_info().rss - before < 50 << 20


async def test_prints_never_come_between_the_answers(pool):
    workers = pool(a={})
    assert [await order(workers, "a", "babble") for _ in range(2)] == ["babbled", "babbled"]
    assert workers.stats()[0].kills == 0


async def test_the_last_words_of_a_child_are_kept_short(pool):
    error = await refused(pool(a={}), "a", "chatter:1000000")
    assert "last words: yyy" in error.cause
    assert len(error.cause) < 9000


async def test_long_texts_arrive_whole(pool):
    assert len(await order(pool(a={}), "a", "long:9000000")) == 9_000_000


async def test_the_event_loop_runs_on_while_children_misbehave(pool):
    workers = pool(a={}, b={"api_key": "x1"}, c={"api_key": "x2"}, memory_bytes=384 << 20)
    ticks = []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.02)

    ticking = asyncio.create_task(tick())
    await asyncio.gather(
        refused(workers, "a", "hang", deadline_s=1),
        refused(workers, "b", "flood"),
        order(workers, "c", "long:30000000"),
    )
    ticking.cancel()
    assert max(b - a for a, b in pairwise(ticks)) < 1.0


async def test_children_are_kept_warm_and_apart_by_purpose_and_credential(pool):
    workers = pool(a={"api_key": SECRET}, b={"api_key": SECRET}, c={"api_key": "another"})
    same = {await order(workers, name, "pid") for name in ("a", "b", "a")}
    assert len(same) == 1
    others = {await order(workers, "a", "pid", purpose="execute"), await order(workers, "c", "pid")}
    assert len(others | same) == 3
    assert sorted((row.purpose, row.resources, row.calls) for row in workers.stats()) == [
        ("execute", ("a",), 1),
        ("observe", ("a", "b"), 3),
        ("observe", ("c",), 1),
    ]
    assert all(row.rss > 1 << 20 for row in workers.stats())


async def test_children_are_bounded_and_everybody_is_served(pool):
    workers = pool(limit=2, **{f"r{n}": {"api_key": str(n)} for n in range(5)})
    most = 0

    async def count():
        nonlocal most
        while True:
            most = max(most, len([child for child in psutil.Process().children() if not gone(child.pid)]))
            await asyncio.sleep(0.01)

    before = len(psutil.Process().children())
    counting = asyncio.create_task(count())
    pids = await asyncio.gather(*(order(workers, f"r{n}", "sleep:0.05") for n in range(5)))
    counting.cancel()
    assert len(set(pids)) == 5
    assert most - before <= 2


async def test_a_child_that_works_in_the_background_is_not_the_one_to_go(pool):
    workers = pool(limit=2, a={"api_key": "n1"}, b={"api_key": "n2"}, c={"api_key": "n3"})
    busy = await order(workers, "a", "work:on")
    await order(workers, "b", "pid")
    await order(workers, "c", "pid")
    assert await order(workers, "a", "pid") == busy


async def test_resources_without_a_credential_are_spread_over_a_few_children(pool):
    workers = pool(limit=16, **{f"r{n}": {"n": str(n)} for n in range(12)})
    pids = [await order(workers, f"r{n}", "pid") for n in range(12)]
    assert len(set(pids)) == 4
    assert max(pids.count(pid) for pid in pids) == 3
    assert [await order(workers, f"r{n}", "pid") for n in range(12)] == pids


async def test_no_room_at_all_is_said(pool):
    workers = pool(limit=1, a={"api_key": "n1"}, b={"api_key": "n2"})
    await order(workers, "a", "work:on")
    error = await refused(workers, "b", "pid", deadline_s=0.1)
    assert error.code == "vendor-timeout"
    assert "All 1 workers were busy" in error.message


async def test_a_cancelled_caller_leaves_the_child_in_order(pool):
    workers = pool(a={})
    pid = await order(workers, "a", "pid")
    caller = asyncio.create_task(order(workers, "a", "sleep:0.2"))
    await asyncio.sleep(0.05)
    caller.cancel()
    assert await order(workers, "a", "pid") == pid


async def test_secrets_go_by_the_pipe_alone(pool, monkeypatch, capfd):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-daemon")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    with capture_logs() as logs:
        workers = pool(a={"api_key": SECRET})
        pid = await order(workers, "a", "pid")
        environment = await order(workers, "a", "environ")
        failure = await refused(workers, "a", "fail")
        crash = await refused(workers, "a", "crash")
    argv = " ".join(psutil.Process().cmdline() + providers.command())
    assert int(pid) > 0
    shown = [environment, argv, repr(workers.stats()), repr(workers._lanes), repr(workers._specs), str(logs)]
    shown += [str(failure.to_wire()), str(crash.to_wire()), *capfd.readouterr()]
    assert not [text for text in shown if SECRET in text]
    assert "***" in failure.cause
    assert "***" in crash.cause
    assert "AWS_SECRET_ACCESS_KEY" not in environment
    assert "PYTHONPATH" not in environment


async def test_the_kernel_sees_no_secret_of_a_child(pool):
    workers = pool(a={"api_key": SECRET})
    pid = await order(workers, "a", "pid")
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in kernel_view(pid, name)


def test_addresses_and_paths_are_not_taken_for_secrets():
    settings = {"endpoint": "https://quantum.example.org/api", "state_dir": "/var/lib/qtandem/x", "password": "pw"}
    text = "https://quantum.example.org/api said pw about /var/lib/qtandem/x"
    assert redact(text, settings) == "https://quantum.example.org/api said *** about /var/lib/qtandem/x"


async def test_a_child_dies_with_its_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        f"import sys, asyncio\nsys.path[:0] = [{providers.ROOT!r}, {os.path.dirname(providers.ROOT)!r}]\n"
        "from qtandem.core.providers.pool import Workers\n"
        "from qtandem.core.providers.base import ProviderSpec\n"
        "from tests.fakes import providers\n"
        "async def main():\n"
        "    workers = Workers({'a': ProviderSpec('a', 'scripted', {})}, command=providers.command())\n"
        "    print('pid', await workers.call('a', 'task_logs', 'pid'), flush=True)\n"
        "    await workers.call('a', 'task_logs', 'hang')\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    pid = int(await asyncio.to_thread(lambda: next(line[4:] for line in parent.stdout if line.startswith("pid "))))
    assert not gone(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    await until(lambda: gone(pid))


async def test_closing_ends_the_children_and_the_calls(pool):
    workers = pool(a={}, b={"api_key": "x1"})
    pids = [int(await order(workers, name, "pid")) for name in ("a", "b")]
    hung = asyncio.create_task(refused(workers, "a", "hang"))
    await asyncio.sleep(0.05)
    await workers.close()
    assert (await hung).code == "not-available"
    assert all(gone(pid) for pid in pids)
    assert (await refused(workers, "b", "pid")).code == "not-available"


async def test_a_new_configuration_gets_new_children(pool):
    workers = pool(a={"api_key": "old"}, b={"api_key": "x1"})
    old, kept = await order(workers, "a", "pid"), await order(workers, "b", "pid")
    changed = {
        "a": ProviderSpec("a", "scripted", {"api_key": "new"}),
        "b": ProviderSpec("b", "scripted", {"api_key": "x1"}, slots=3),
    }
    await workers.update(changed)
    assert gone(int(old))
    assert await order(workers, "b", "pid") == kept
    assert await order(workers, "b", "slots") == "3"
    assert await order(workers, "a", "pid") != old


async def test_faults_of_the_caller_are_named(pool):
    workers = pool(a={}, broken={"broken": "yes"})
    assert (await refused(workers, "nobody", "pid")).code == "unknown-resource"
    for method in ("__init__", "pid", "busy"):
        with pytest.raises(QtandemError, match="no method") as caught:
            await workers.call("a", method)
        assert caught.value.code == "unsupported"
    for _ in range(2):
        assert "cannot be opened" in (await refused(workers, "broken", "pid")).cause
    with pytest.raises(QtandemError, match="wrongly") as caught:
        await workers.call("a", "observe")
    assert caught.value.code == "vendor-error"


async def test_a_type_without_provider_says_so():
    workers = Workers({"a": ProviderSpec("a", "abacus", {})})
    try:
        with pytest.raises(QtandemError, match="abacus") as caught:
            await workers.call("a", "observe")
        assert caught.value.code == "no-provider"
    finally:
        await workers.close()


async def test_observing_an_ideal_device_needs_no_sdk(tmp_path):
    workers = Workers({"sim": ProviderSpec("sim", "simulator", {"state_dir": str(tmp_path)}, 2)})
    try:
        seen = await workers.call("sim", "observe")
        assert isinstance(seen, Observation)
        assert (seen.availability, seen.free_slots, seen.total_slots) == (Availability.ONLINE, 2, 2)
        [row] = workers.stats()
        maps = kernel_view(row.pid, "maps").decode()
        assert not [word for word in ("qiskit", "numpy", "scipy") if word in maps]
        assert row.rss < 80e6
    finally:
        await workers.close()


async def test_a_poll_that_hung_is_asked_apart_and_delays_no_other_one_of_its_credential(pool):
    workers = pool(limit=2, deadline_s=1.0, a={"url": "1"}, b={"url": "2"})
    shared = await workers.call("a", "task_logs", "pid")
    assert await workers.call("b", "task_logs", "pid") == shared
    with pytest.raises(QtandemError):
        await workers.call("a", "task_logs", "hang")
    fresh = await workers.call("b", "task_logs", "pid")
    hanging = asyncio.create_task(workers.call("a", "task_logs", "hang", deadline_s=20.0))
    await asyncio.sleep(0)
    assert await workers.call("b", "task_logs", "pid") == fresh
    hanging.cancel()


async def test_a_poll_that_answers_again_comes_back(pool):
    workers = pool(limit=2, deadline_s=2.0, a={"url": "1"}, b={"url": "2"})
    with pytest.raises(QtandemError):
        await workers.call("a", "task_logs", "hang")
    apart = await workers.call("a", "task_logs", "pid")
    shared = await workers.call("b", "task_logs", "pid")
    assert shared != apart
    assert await workers.call("a", "task_logs", "pid") == shared


async def test_many_credentials_get_one_child_each_before_any_gets_two(pool):
    resources = {f"{key}{url}": {"api_key": key, "url": url} for key in "abcd" for url in "123"}
    workers = pool(limit=8, **resources)
    pids = {name: await workers.call(name, "task_logs", "pid") for name in resources}
    assert len(set(pids.values())) == 4
    assert {len({pid for name, pid in pids.items() if name[0] == key}) for key in "abcd"} == {1}


def test_more_credentials_than_children_are_a_problem_to_show(pool):
    specs = {name: ProviderSpec(name, "scripted", {"api_key": name, "auth_endpoint": "http://a"}) for name in "abc"}
    assert "raise timing.workers" in Workers(specs, 2).crowded()
    assert not Workers(specs, 3).crowded()


def test_an_address_is_no_credential():
    specs = [ProviderSpec(n, "scripted", {"api_key": "k", "AUTH_ENDPOINT": f"http://{n}"}) for n in "abc"]
    assert not Workers({spec.resource: spec for spec in specs}, 1).crowded()


async def test_states_of_many_tasks_come_in_one_call_with_each_error_at_its_place(pool):
    workers = pool(a={"api_key": "key-0123456789abcdef"})
    told = await workers.call("a", "task_statuses", ["running", "lost", "completed"], purpose="execute")
    assert [each.state for each in (told["running"], told["completed"])] == [TaskState.RUNNING, TaskState.COMPLETED]
    assert (told["lost"].code, told["lost"].cause) == ("no-such-run", "the key *** does not see it")


@pytest.mark.parametrize("settings", [{}, {"lists": "yes"}])
@pytest.mark.parametrize(("bad", "code"), [("odd", "vendor-error"), ("lost", "no-such-run")])
async def test_a_task_that_cannot_be_read_hides_no_other(pool, settings, bad, code):
    told = await pool(a=settings).call("a", "task_statuses", ["running", bad, "completed"], purpose="execute")
    assert [each.state for each in (told["running"], told["completed"])] == [TaskState.RUNNING, TaskState.COMPLETED]
    assert told[bad].code == code


@pytest.mark.parametrize(("settings", "also"), [({}, set()), ({"lists": "yes"}, {"completed"})])
async def test_of_others_comes_the_end_where_it_costs_no_call(pool, settings, also):
    told = await pool(a=settings).call("a", "task_statuses", ["running"], ["queued", "completed"], purpose="execute")
    assert set(told) == {"running"} | also


async def test_a_slow_vendor_is_asked_for_as_many_states_as_there_is_time(pool):
    workers = pool(a={})
    assert (
        1
        <= len(await workers.call("a", "task_statuses", [f"slow:2.{number}" for number in range(8)], purpose="execute"))
        < 8
    )


async def test_a_provider_that_asks_nothing_first_is_sent_new_tasks_as_any(pool):
    assert await pool(a={}).call("a", "task_send", "s1", "k1", {}, purpose="execute") == "v-k1"
