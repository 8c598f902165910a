"""Ordinary Qiskit code on a real qtandemd with simulated QPUs."""

import json
import time
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("qiskit_aer", reason="the simulator runs circuits on Qiskit Aer")
from qiskit import QuantumCircuit, generate_preset_pass_manager
from qiskit.circuit import Parameter
from qiskit.primitives import PrimitiveResult
from qiskit.providers import JobStatus
from qiskit.quantum_info import SparsePauliOp
from qiskit.transpiler import Target

from qtandem.core import client
from qtandem.core.providers.simulator import calibration
from qtandem.core.qiskit import (
    EstimatorV2,
    QiskitRuntimeService,
    QtandemBackend,
    SamplerV2,
    Session,
    target_of,
)
from tests.fakes.qtandemd import Qtandemd, simulator


@pytest.fixture(scope="module")
def site() -> Iterator[Qtandemd]:
    site = Qtandemd({})
    site.resources = {
        "sim": simulator(site.folder / "sim", slots=2, seed=7),
        "fez": simulator(site.folder / "fez", slots=2, seed=7, backend="fake_fez"),
    }
    site.write()
    site.start()
    while not all(row["open"] for row in site.daemon.get("resources")["resources"]):
        time.sleep(0.05)
    site.daemon.post("claims", body={"request": "sim+fez", "ttl_s": 600})
    yield site
    site.close()


@pytest.fixture(autouse=True)
def _in_a_job(site: Qtandemd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QTANDEM_RUN", raising=False)
    monkeypatch.setenv("QTANDEM_SOCKET", str(site.daemon.path))
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "sim,fez")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "simulator,simulator")


def bell() -> QuantumCircuit:
    circuit = QuantumCircuit(2)
    circuit.h(0)
    circuit.cx(0, 1)
    circuit.measure_all()
    return circuit


def turning() -> QuantumCircuit:
    circuit = QuantumCircuit(1)
    circuit.ry(Parameter("a"), 0)
    return circuit


def test_the_sampler_gives_the_result_that_qiskit_promises():
    job = SamplerV2().run([bell(), (bell(), None, 100)], shots=400)
    result = job.result(timeout=50)
    assert isinstance(result, PrimitiveResult)
    assert result[0].data.meas.num_shots == 400
    assert set(result[0].data.meas.get_counts()) == {"00", "11"}
    assert sum(result[1].data.meas.get_counts().values()) == 100
    assert (job.status(), job.done(), job.cancel()) == (JobStatus.DONE, True, False)


def test_a_sweep_of_parameters_keeps_its_shape():
    circuit = turning()
    circuit.measure_all()
    result = SamplerV2("sim", default_shots=50).run([(circuit, np.zeros((3, 2, 1)))]).result(timeout=50)
    assert result[0].data.meas.shape == (3, 2)
    assert result[0].data.meas.get_counts((2, 1)) == {"0": 50}


def test_the_estimator_gives_expectation_values():
    sweep = np.array([0.0, np.pi / 2, np.pi])
    pub = (turning(), [["Z"], [SparsePauliOp(["X", "Z"], [2, 0])]], sweep)
    values = EstimatorV2(QtandemBackend("sim"), default_precision=0.01).run([pub]).result(timeout=50)[0].data.evs
    assert values == pytest.approx(np.array([np.cos(sweep), 2 * np.sin(sweep)]), abs=0.1)


def test_a_program_for_ibm_runs_with_one_import_changed():
    service = QiskitRuntimeService(channel="ibm_quantum_platform")
    backend = service.least_busy(operational=True, simulator=False, min_num_qubits=100)
    assert backend.name == "fez"
    circuit = generate_preset_pass_manager(1, backend=backend, seed_transpiler=1).run(bell())
    assert circuit.num_qubits == 156
    with Session(backend=backend) as session:
        sampler = SamplerV2(mode=session)
        sampler.options.default_shots = 300
        sampler.options.twirling.enable_gates = True
        counts = sampler.run([circuit]).result()[0].data.meas.get_counts()
    assert sum(counts.values()) == 300
    estimator = EstimatorV2(mode=backend)
    state = generate_preset_pass_manager(1, backend=backend, seed_transpiler=1).run(
        bell().remove_final_measurements(False)
    )
    observable = SparsePauliOp("ZZ").apply_layout(state.layout)
    assert estimator.run([(state, observable)]).result()[0].data.evs == pytest.approx(1.0, abs=0.1)


def test_backend_run_gives_counts_as_qiskit_writes_them():
    two = QuantumCircuit(2, 1, name="two registers")
    two.x(0)
    two.measure(0, 0)
    two.measure_all()
    result = QtandemBackend("sim").run([bell(), two], shots=64, memory=True).result(timeout=50)
    assert result.get_counts("two registers") == {"01 1": 64}
    assert set(result.get_counts(0)) == {"00", "11"}
    assert result.get_memory(1) == ["01 1"] * 64


def test_the_target_of_a_real_device_is_that_of_ibm():
    from qiskit_ibm_runtime.fake_provider import FakeFez

    ours, theirs = QtandemBackend("fez").target, FakeFez().target
    assert ours.num_qubits == theirs.num_qubits
    assert ours.dt == pytest.approx(theirs.dt)
    assert set(ours.build_coupling_map()) == set(theirs.build_coupling_map())
    for name in ("cz", "sx", "rz", "measure"):
        assert ours[name].keys() == theirs[name].keys()
        for place, entry in theirs[name].items():
            assert ours[name][place].error == pytest.approx(entry.error)
            assert ours[name][place].duration == pytest.approx(entry.duration)


def test_the_target_of_an_ideal_device_takes_any_circuit_that_fits():
    backend = QtandemBackend("sim")
    circuit = generate_preset_pass_manager(3, backend=backend).run(bell())
    assert isinstance(backend.target, Target)
    assert backend.num_qubits == 4
    assert SamplerV2(backend).run([circuit]).result(timeout=50)[0].data.meas.num_shots == 1024


def test_a_gate_that_is_out_of_order_is_left_out():
    description = calibration.description("fake_fez")
    gate = next(gate for gate in description["properties"]["gates"] if gate["gate"] == "cz")
    gate["parameters"].append({"name": "operational", "value": 0})
    assert tuple(gate["qubits"]) not in target_of(json.dumps(description))["cz"]


def test_a_description_of_another_kind_says_so():
    with pytest.raises(client.UnsupportedFunctionError):
        target_of('[{"device_type": "FRESNEL"}]')


def test_a_circuit_that_cannot_run_says_why():
    job = SamplerV2().run([QuantumCircuit(5, 1)])
    with pytest.raises(client.QrmiError, match="5 qubits, the device 4"):
        job.result(timeout=50)
    assert job.status() is JobStatus.ERROR


def test_without_a_qpu_the_message_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "")
    with pytest.raises(client.EnvVarNotSetError, match="--qpu"):
        SamplerV2()
    with pytest.raises(client.ResourceNotFoundError):
        QiskitRuntimeService().backend("ibm_fez")
