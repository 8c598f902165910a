"""What users send is read without trust, and run as they meant it."""

import base64
import json
import zlib

import pytest

pytest.importorskip("qiskit_aer", reason="the extra `simulator` is not installed")

import numpy as np
from qiskit import QuantumCircuit
from qiskit.circuit import Parameter
from qiskit.quantum_info import SparsePauliOp
from qiskit_ibm_runtime import RuntimeDecoder, RuntimeEncoder

from qtandem.core.providers.simulator.engine import answer_to

BELL2 = 'OPENQASM 2.0; include "qelib1.inc"; qreg q[2]; creg c[2]; h q[0]; cx q[0],q[1]; measure q -> c;'
BELL3 = 'OPENQASM 3.0; include "stdgates.inc"; qubit[2] q; bit[2] c; h q[0]; cx q[0], q[1]; c = measure q;'
IDEAL = {"backend": "ideal", "noise": False, "seed": 7, "qubits": 40, "max_shots": 10_000}
NOISY = {"backend": "fake_fez", "noise": True, "seed": 7, "qubits": 156, "max_shots": 10_000}


def ask(op, payload, options):
    answer, text = answer_to({"op": op, "payload": payload, "options": options})
    return answer, text


def run(payload, options=IDEAL):
    answer, text = ask("run", payload, options)
    assert answer["ok"], answer
    return text


def counts(program, kind="qasm3", options=IDEAL, shots=1000):
    return json.loads(run({"kind": kind, "program": program, "shots": shots}, options))["counts"]


def refusal(payload, options=IDEAL):
    answer, _ = ask("check", payload, options)
    assert not answer["ok"]
    assert answer["error"]["code"] == "bad-payload", answer
    return f"{answer['error']['message']}: {answer['error']['cause']}"


def primitive(program, pubs, **more):
    return {"kind": "qiskit-primitive", "program_id": program, "input": encoded({"pubs": pubs, "version": 2, **more})}


def encoded(content):
    return json.dumps(content, cls=RuntimeEncoder)


def results(payload, options=IDEAL):
    return json.loads(run(payload, options), cls=RuntimeDecoder)


def bell(measure=True):
    circuit = QuantumCircuit(2)
    circuit.h(0)
    circuit.cx(0, 1)
    if measure:
        circuit.measure_all()
    return circuit


@pytest.mark.parametrize(("kind", "program"), [("qasm2", BELL2), ("qasm3", BELL3)])
def test_a_bell_pair_gives_equal_bits_and_all_shots(kind, program):
    found = counts(program, kind)
    assert set(found) == {"00", "11"}
    assert sum(found.values()) == 1000


def test_a_seed_makes_equal_tasks_give_equal_counts():
    assert counts(BELL3) == counts(BELL3)
    assert counts(BELL3, options=IDEAL | {"seed": 8}) != counts(BELL3)


def test_bit_strings_of_several_registers_are_one_word():
    program = 'OPENQASM 3.0; include "stdgates.inc"; qubit[3] q; bit[2] a; bit[1] b; bit c;'
    program += "x q[2]; a[0] = measure q[0]; b[0] = measure q[2]; c = measure q[1];"
    body = json.loads(run({"kind": "qasm3", "program": program, "shots": 5}))
    assert body["counts"] == {"0100": 5}
    assert body["registers"] == [["bit3", 1], ["b", 1], ["a", 2]]


def test_feedback_and_defined_gates_run():
    program = (
        'OPENQASM 3.0; include "stdgates.inc"; gate twice a { x a; x a; } qubit[2] q; bit[2] c;'
        "x q[0]; twice q[1]; c[0] = measure q[0]; if (c[0]) { x q[1]; } c[1] = measure q[1];"
    )
    assert counts(program) == {"11": 1000}


def test_a_circuit_far_beyond_a_state_vector_still_runs():
    program = 'OPENQASM 3.0; include "stdgates.inc"; qubit[40] q; bit[40] c; ry(0.3) q[0];'
    program += "".join(f"cx q[{n}], q[{n + 1}];" for n in range(39)) + "t q[3]; c = measure q;"
    assert set(counts(program, shots=20)) <= {"0" * 40, "1" * 40}


def test_noise_is_that_of_the_qubits_in_use():
    found = counts(BELL3, options=NOISY, shots=4000)
    wrong = found.get("01", 0) + found.get("10", 0)
    assert 0 < wrong < 600
    assert found == counts(BELL3, options=NOISY, shots=4000)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"kind": "qasm3", "program": BELL3, "shots": 0}, "shots = 0"),
        ({"kind": "qasm3", "program": BELL3, "shots": "many"}, "shots = 'many'"),
        ({"kind": "qasm3", "program": BELL3, "shots": True}, "shots = True"),
        ({"kind": "qasm3", "program": BELL3, "shots": 10_001}, "more than the 10000"),
        (
            {"kind": "qasm3", "program": "OPENQASM 3.0; qubit[41] q; bit c; c = measure q[0];"},
            "41 qubits, the device 40",
        ),
        ({"kind": "qasm2", "program": "OPENQASM 2.0; qreg q[1];"}, "measures nothing"),
        ({"kind": "qasm2", "program": "OPENQASM 2.0; qreg q[1"}, "not OpenQASM 2"),
        ({"kind": "qasm3", "program": "OPENQASM 3.0; qubit[1 q;"}, "not OpenQASM 3"),
        ({"kind": "qasm3", "program": ""}, "not a text"),
        ({"kind": "qasm3"}, "not a text"),
        ({"kind": "qasm2", "program": 'OPENQASM 2.0; include "/etc/passwd"; qreg q[1];'}, "unable to find"),
        ({"kind": "qasm3", "program": 'OPENQASM 3.0; include "/etc/passwd"; qubit q;'}, "not currently supported"),
        ({"kind": "qiskit-primitive", "program_id": "noise-learner", "input": "{}"}, "not 'noise-learner'"),
        ({"kind": "qiskit-primitive", "program_id": "sampler", "input": "{"}, "RuntimeEncoder"),
        ({"kind": "qiskit-primitive", "program_id": "sampler", "input": '{"pubs": []}'}, "at least one pub"),
        ({"kind": "qiskit-primitive", "program_id": "sampler", "input": '{"pubs": [[7]]}'}, "pub of the sampler"),
        ({"kind": "qiskit-primitive", "program_id": "sampler", "input": '{"params": {}}'}, "keys"),
    ],
)
def test_a_wrong_payload_is_refused_in_words(payload, words):
    assert words in refusal(payload)


def test_a_sampler_answers_in_the_runtime_s_encoding():
    [result] = results(primitive("sampler", [(bell(), None, 200)]))
    found = result.data.meas.get_counts()
    assert set(found) == {"00", "11"}
    assert sum(found.values()) == 200


def test_a_sampler_takes_parameters_and_defaults():
    circuit = QuantumCircuit(1)
    circuit.rx(Parameter("a"), 0)
    circuit.measure_all()
    payload = primitive("sampler", [(circuit, np.array([[0.0], [np.pi]]))], options={"default_shots": 50})
    answer, text = ask("run", payload, IDEAL)
    data = json.loads(text, cls=RuntimeDecoder)[0].data.meas
    assert (data.get_counts(0), data.get_counts(1)) == ({"0": 50}, {"1": 50})
    assert answer["shots"] == 100


def test_a_circuit_of_a_pub_may_be_openqasm():
    first, second = results(primitive("sampler", [[BELL3, None, 30], [BELL2, None, 30]]))
    assert first.data.c.num_shots == second.data.c.num_shots == 30


def test_an_estimator_answers_in_the_runtime_s_encoding():
    payload = primitive("estimator", [(bell(measure=False), SparsePauliOp(["ZZ", "XX"], [1.0, 0.5]), None, 0.01)])
    [result] = results(payload)
    assert float(result.data.evs) == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("program", ["sampler", "estimator"])
def test_primitives_run_with_noise(program):
    pub = (bell(), None, 2000) if program == "sampler" else (bell(measure=False), SparsePauliOp("ZZ"), None, 0.005)
    [result] = results(primitive(program, [pub]), NOISY)
    if program == "sampler":
        assert {"01", "10"} & set(result.data.meas.get_counts())
    else:
        assert 0.7 < float(result.data.evs) < 0.999


def test_a_compiled_circuit_of_the_whole_device_runs_fast_with_noise():
    circuit = QuantumCircuit(156, 2)
    circuit.sx(3)
    circuit.cz(3, 4)
    circuit.measure([3, 4], [0, 1])
    [result] = results(primitive("sampler", [(circuit, None, 500)]), NOISY)
    assert result.data.c.num_shots == 500


def typed(kind, value, **more):
    content = {"pubs": [[{"__type__": kind, "__value__": value, **more}]], "version": 2}
    return {"kind": "qiskit-primitive", "program_id": "sampler", "input": json.dumps(content)}


def packed(data):
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (typed("settings", {"args": "id"}, __module__="subprocess", __class__="Popen"), "does not decode 'Popen'"),
        (typed("_json", {}, __module__="os", __class__="system"), "does not decode 'system'"),
        (typed("to_json", "x"), "does not decode 'to_json'"),
        (typed("spmatrix", "x"), "does not decode 'spmatrix'"),
        (typed("QuantumCircuit", packed(b"QISKIT\x0a" + bytes(50))), "QPY version 13"),
        (typed("QuantumCircuit", packed(b"\x80\x04cos\nsystem\n")), "QPY version 13"),
        (typed("QuantumCircuit", packed(b"QISKIT\x0d" + bytes(80 << 20))), "larger than 64 MiB"),
        (typed("QuantumCircuit", "!!!"), "damaged"),
        (typed("ndarray", packed(b"\x80\x04cos\nsystem\n")), "RuntimeEncoder"),
    ],
)
def test_nothing_is_decoded_that_could_run_code_or_burst(payload, words):
    assert words in refusal(payload)
