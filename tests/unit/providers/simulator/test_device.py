"""The device's bookkeeping and its knobs; no SDK is needed for any of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.providers.base import ProviderSpec, TaskState
from qtandem.core.providers.simulator.device import SimulatedDevice, state_dir
from qtandem.core.providers.simulator.provider import SimulatorProvider
from qtandem.core.providers.simulator.retention import STEP, Keep

ROOT = str(Path(__file__).parents[4] / ".dev")


@pytest.fixture
def device(tmp_path):
    return SimulatedDevice(tmp_path, clock=lambda: 1000.0)


def provider(tmp_path, slots=2, **settings):
    made = SimulatorProvider(ProviderSpec("sim", "simulator", {"state_dir": str(tmp_path)} | settings, slots))
    made.device.clock = lambda: 1000.0
    return made


def code(call, *args):
    with pytest.raises(QtandemError) as caught:
        call(*args)
    return caught.value.code


def test_sessions_never_take_more_than_the_slots(device):
    tokens = [device.acquire("a", 1, 2), device.acquire("b", 1, 2)]
    assert code(device.acquire, "c", 1, 2) == "slots-busy"
    device.release(tokens[0])
    device.acquire("c", 1, 2)
    assert {row["key"] for row in device.sessions()} == {"b", "c"}


def test_the_witness_names_who_wanted_too_much(device):
    device.acquire("a", 2, 2)
    assert device.violations() == []
    code(device.acquire, "b", 1, 2)
    assert device.violations() == ["b wanted 1 slots with 2 of 2 taken"]


def test_slots_that_others_use_are_refused_but_nobody_s_fault(device):
    device.set(free_slots=0)
    assert code(device.acquire, "a", 1, 2) == "slots-busy"
    assert device.violations() == []


def test_the_log_tells_an_acquisition_from_its_repetition(device):
    token = device.acquire("a", 1, 2)
    assert device.acquire("a", 1, 2) == token
    device.release(token)
    device.release(token)
    assert [(row["event"], row.get("again", False)) for row in device.log()] == [
        ("acquire", False),
        ("acquire", True),
        ("release", False),
    ]


def test_knobs_turn_from_another_process(device, tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {ROOT!r})\n"
        "from qtandem.core.providers.simulator.device import SimulatedDevice\n"
        f"SimulatedDevice({str(tmp_path)!r}).set(availability='paused', queue=12)\n"
    )
    subprocess.run([sys.executable, "-I", "-c", script], check=True)
    seen = provider(tmp_path).observe()
    assert (seen.availability, seen.queue) == (Availability.PAUSED, 12)


@pytest.mark.parametrize(
    "knobs",
    [
        {"colour": "red"},
        {"availability": "open"},
        {"fault": "418"},
        {"queue": -1},
        {"queue": "many"},
        {"calibration_windows": [[5, 1]]},
        {"calibration_windows": 3},
    ],
)
def test_a_knob_that_cannot_be_set_so_changes_nothing(device, knobs):
    before = device.knobs()
    assert code(lambda: device.set(**knobs)) == "bad-request"
    assert device.knobs() == before


def test_a_calibration_window_pauses_and_renews_the_calibration(tmp_path):
    simulator = provider(tmp_path)
    simulator.device.set(calibration_windows=[[900, 950], [990, 1060]])
    seen = simulator.observe()
    assert (seen.availability, seen.reason) == (Availability.PAUSED, "calibrating")
    assert (seen.opens_at, seen.wait_s, seen.calibration.taken_at) == (1060, 60, 950)
    with pytest.raises(QtandemError, match="calibrating") as caught:
        simulator.acquire("a", 1)
    assert caught.value.retry_after == 60
    simulator.device.clock = lambda: 1060.0
    assert simulator.observe().availability is Availability.ONLINE
    simulator.acquire("a", 1)


def test_a_closed_device_still_knows_its_open_sessions(tmp_path):
    simulator = provider(tmp_path)
    token = simulator.acquire("a", 1)
    simulator.device.set(availability="offline", reason="maintenance")
    assert simulator.acquire("a", 1) == token
    assert code(simulator.acquire, "b", 1) == "not-available"


def test_facts_show_what_was_set(tmp_path):
    simulator = provider(tmp_path)
    simulator.device.set(queue=3, wait_s=90, slots=5, free_slots=4)
    seen = simulator.observe()
    assert (seen.queue, seen.wait_s, seen.total_slots, seen.free_slots) == (3, 90, 5, 4)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("500", "vendor-error"), ("401", "bad-credentials"), ("403", "policy"), ("garbage", "vendor-error")],
)
def test_faults_strike_the_named_methods(tmp_path, fault, expected, capfd):
    simulator = provider(tmp_path)
    simulator.device.set(fault=fault, fault_on="acquire, release")
    assert code(simulator.acquire, "a", 1) == expected
    assert simulator.find_session("a") is None
    assert simulator.observe().availability is Availability.ONLINE


def test_a_credential_that_may_not_look_is_a_fact(tmp_path):
    simulator = provider(tmp_path)
    simulator.device.set(fault="403")
    assert simulator.observe().availability is Availability.FORBIDDEN


def test_a_fault_can_strike_after_the_effect(tmp_path):
    simulator = provider(tmp_path)
    simulator.device.set(fault="500", fault_on="acquire", fault_at="after")
    assert code(simulator.acquire, "a", 1) == "vendor-error"
    token = simulator.find_session("a")
    simulator.device.set(fault="")
    assert simulator.acquire("a", 1) == token


def test_a_task_needs_an_open_session(device):
    token = device.acquire("a", 1, 1)
    device.release(token)
    assert code(device.task_start, token, "t", {}) == "no-lease"
    assert code(device.task_start, "made-up", "t", {}) == "no-lease"


def test_a_session_runs_as_many_tasks_at_once_as_it_has_slots(device):
    token = device.acquire("a", 2, 2)
    tasks = [device.task_start(token, f"t{n}", {"n": n}) for n in range(3)]
    claimed = [device.claim_task(), device.claim_task()]
    assert [task.id for task in claimed] == tasks[:2]
    assert device.claim_task() is None
    device.finish_task(tasks[0], "{}", 10, 0.5)
    assert device.claim_task().payload == {"n": 2}


def test_a_result_that_comes_after_the_stop_is_dropped(device):
    token = device.acquire("a", 1, 1)
    task = device.task_start(token, "t", {})
    device.claim_task()
    device.task_stop(task)
    device.finish_task(task, "{}", 10, 0.5)
    assert device.task_report(task).state is TaskState.CANCELLED
    assert code(device.task_result, task) == "task-failed"


def test_release_cancels_what_is_not_done(device):
    token = device.acquire("a", 1, 1)
    running, queued = (device.task_start(token, f"t{n}", {}) for n in range(2))
    device.claim_task()
    assert device.release(token) == [running, queued]
    assert device.task_report(running).reason == "its session was released"


def test_the_state_is_closed_to_other_users(tmp_path):
    folder = SimulatedDevice(tmp_path / "new").path
    assert folder.stat().st_mode & 0o077 == 0


def test_the_state_folder_follows_the_setting_then_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert state_dir("sim", {}) == Path("/xdg/qtandem/simulator/sim")
    assert state_dir("sim", {"state_dir": "/own"}) == Path("/own")


@pytest.mark.parametrize(
    "settings",
    [
        {"state_dir": "here"},
        {"state_dir": "/proc/no"},
        {"qubits": "0"},
        {"qubits": "many"},
        {"seed": "-1"},
        {"noise": "some"},
        {"noise": "true"},
        {"max_shots": "x"},
    ],
)
def test_wrong_settings_are_named(tmp_path, settings):
    with pytest.raises(QtandemError, match="/proc/no|" + next(iter(settings))) as caught:
        provider(tmp_path, **settings)
    assert caught.value.code == "bad-config"


def test_what_is_over_is_forgotten_in_small_steps_and_nothing_else(tmp_path):
    now = [1000.0]
    device = SimulatedDevice(tmp_path, clock=lambda: now[0], keep=Keep(days=2, tasks=100_000))
    token = device.acquire("open", 1, 5)
    kept = device.task_start(token, "waiting", {})
    old = [device.acquire(f"old-{number}", 1, 5) for number in range(3)]
    tasks = [device.task_start(old[0], f"task-{number}", {}) for number in range(STEP + 20)]
    for each in old:
        device.release(each)
    now[0] += 2 * 86_400 - 1
    device.task_start(token, "on time", {})
    assert device.task_report(tasks[0]).state is TaskState.CANCELLED
    now[0] += 2
    device.task_start(token, "one step", {})
    with pytest.raises(QtandemError):
        device.task_report(tasks[0])
    assert device.task_report(tasks[-1]).state is TaskState.CANCELLED, "not all at once"
    device.task_start(token, "another step", {})
    with pytest.raises(QtandemError):
        device.task_report(tasks[-1])
    assert device.find_task("waiting") == kept
    assert device.find_session("open") == token
    assert device._value("SELECT count(*) FROM sessions") == 1


def test_a_device_keeps_its_newest_tasks_and_its_file_stops_growing(tmp_path):
    device = SimulatedDevice(tmp_path, keep=Keep(days=7, tasks=100))
    token, sizes = device.acquire("run", 1, 5), []
    for number in range(600):
        task = device.task_start(token, f"task-{number}", {})
        device.claim_task()
        device.finish_task(task, "x" * 5_000, 1, 0.1)
        if number in (299, 599):
            sizes.append((tmp_path / "device.db").stat().st_size)
    assert device._value("SELECT count(*) FROM tasks") <= 101
    assert device.task_result(task)
    assert sizes[1] <= sizes[0] * 1.2
