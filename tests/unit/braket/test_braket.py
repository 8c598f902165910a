"""Ordinary Braket code on a real qtandemd with the SDK's own simulators behind it."""

import asyncio
import math
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("braket", reason="needs amazon-braket-sdk")
from braket.circuits import Circuit, FreeParameter, Observable, noises
from braket.circuits.noise_model import GateCriteria, NoiseModel
from braket.device_schema import DeviceActionType
from braket.devices import Device, LocalSimulator
from braket.ir.openqasm import Program
from braket.program_sets import ProgramSet
from braket.tasks.quantum_task import QuantumTask

from qtandem.core import client
from qtandem.core.braket import AwsDevice, QtandemDevice, QtandemTask
from tests.fakes.qtandemd import Qtandemd

BELL = Circuit().h(0).cnot(0, 1)


@pytest.fixture(scope="module")
def site() -> Iterator[Qtandemd]:
    site = Qtandemd({})
    for name in ("sv", "dm"):
        settings = {"device": f"local:braket_{name}", "state_dir": str(site.folder / name)}
        site.resources[name] = {"type": "braket", "slots": 2, "settings": settings}
    site.write()
    site.start()
    while not all(row["open"] for row in site.daemon.get("resources")["resources"]):
        time.sleep(0.05)
    site.daemon.post("claims", body={"request": "sv+dm", "ttl_s": 600})
    yield site
    site.close()


@pytest.fixture(autouse=True)
def _in_a_job(site: Qtandemd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QTANDEM_RUN", raising=False)
    monkeypatch.setenv("QTANDEM_SOCKET", str(site.daemon.path))
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "sv,dm")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "braket,braket")


def test_a_circuit_runs_as_on_any_device_of_braket():
    device: Device = QtandemDevice()
    assert (device.name, device.status) == ("sv", "ONLINE")
    task = device.run(BELL, shots=200)
    assert isinstance(task, QuantumTask)
    result = task.result()
    assert set(result.measurement_counts) == {"00", "11"}
    assert sum(result.measurement_counts.values()) == 200
    assert (task.state(), task.metadata()["status"]) == ("COMPLETED", "COMPLETED")


def test_exact_results_are_those_of_the_sdk():
    circuit = Circuit().rx(0, FreeParameter("a")).expectation(Observable.Z(), target=0).probability()
    ours = QtandemDevice("sv").run(circuit, inputs={"a": 0.7}).result()
    theirs = LocalSimulator().run(circuit, shots=0, inputs={"a": 0.7}).result()
    assert ours.values[0] == pytest.approx(math.cos(0.7))
    assert ours.values[1] == pytest.approx(theirs.values[1])
    state = QtandemDevice("sv").run(Circuit().x(0).i(1).state_vector()).result()
    assert list(state.values[0]) == [0, 0, 1, 0]


def test_a_program_for_aws_runs_with_one_import_changed():
    device = AwsDevice("sv")
    result = device.run(BELL, ("amazon-braket-bucket", "folder"), shots=64, poll_timeout_seconds=60).result()
    assert sum(result.measurement_counts.values()) == 64
    assert [each.name for each in AwsDevice.get_devices()] == ["sv", "dm"]
    assert [each.name for each in AwsDevice.get_devices(names=["dm"])] == ["dm"]
    source = "OPENQASM 3.0; input float a; qubit[1] q; bit[1] b; rx(a) q[0]; b = measure q;"
    counts = device.run(Program(source=source, inputs={"a": 0.0}), shots=10, inputs={"a": math.pi}).result()
    assert counts.measurement_counts == {"1": 10}
    with pytest.raises(client.ResourceNotFoundError, match="none of which is arn:aws"):
        AwsDevice("arn:aws:braket:eu-north-1::device/qpu/iqm/Garnet")


def test_a_batch_has_a_task_for_each_circuit_and_each_input():
    batch = AwsDevice().run_batch([BELL, Circuit().x(0)], shots=[30, 40])
    assert [sum(result.measurement_counts.values()) for result in batch.results()] == [30, 40]
    circuit = Circuit().ry(0, FreeParameter("a"))
    batch = QtandemDevice().run_batch(circuit, shots=20, inputs=[{"a": 0.0}, {"a": math.pi}, {"a": 0.0}])
    assert [list(result.measurement_counts) for result in batch.results()] == [["0"], ["1"], ["0"]]
    with pytest.raises(ValueError, match="2 values are given for 3 tasks"):
        QtandemDevice().run_batch([BELL] * 3, shots=[1, 2])


def test_a_program_set_is_one_task():
    pair = ProgramSet([BELL, Circuit().x(0).i(1)], shots_per_executable=25)
    result = QtandemDevice("sv").run(pair).result()
    counts = [each.counts for entry in result for each in entry]
    assert [sum(each.values()) for each in counts] == [25, 25]
    assert set(counts[1]) == {"10"}


def test_a_noise_model_is_applied_where_the_device_knows_it():
    model = NoiseModel().add_noise(noises.BitFlip(0.5), GateCriteria())
    result = QtandemDevice("dm", noise_model=model).run(Circuit().x(0), shots=400).result()
    assert 100 < result.measurement_counts["0"] < 300
    with pytest.raises(ValueError, match="does not support noise"):
        QtandemDevice("sv", noise_model=model)


def test_the_description_is_the_sdks():
    properties = QtandemDevice("dm").properties
    assert DeviceActionType.OPENQASM in properties.action
    assert (QtandemDevice("dm").arn, QtandemDevice("dm").type) == ("", "SIMULATOR")


def test_what_the_sdk_refuses_is_refused_before_a_task_is_made(site: Qtandemd):
    before = len(site.daemon.get("tasks")["tasks"])
    device = QtandemDevice()
    for wrong, why in (
        (Circuit().rx(0, FreeParameter("a")), "without a value: a"),
        (BELL, "shots=0"),
        ("OPENQASM 3;", "cannot be run"),
    ):
        with pytest.raises(ValueError, match=why):
            device.run(wrong)
    assert len(site.daemon.get("tasks")["tasks"]) == before


def test_a_task_that_failed_says_why_and_one_that_is_cancelled_ends():
    task = QtandemDevice().run(Program(source="OPENQASM 3.0; qubit[1] q; nogate q[0];"), shots=5)
    with pytest.raises(client.QrmiError, match="nogate"):
        task.result()
    assert task.state() == "FAILED"
    long = QtandemDevice().run(Circuit().h(range(25)), shots=10)
    long.cancel()
    with pytest.raises(client.QrmiError, match="cancelled"):
        long.result()


def test_results_in_an_event_loop():
    async def both() -> list[QtandemTask]:
        tasks = [QtandemDevice().run(BELL, shots=10) for _ in range(2)]
        return await asyncio.gather(*(task.async_result() for task in tasks))

    assert [sum(result.measurement_counts.values()) for result in asyncio.run(both())] == [10, 10]
