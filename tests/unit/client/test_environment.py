import json
import os
import subprocess
import sys

import pytest

from qtandem.core import client
from qtandem.core.client.types import qasm

NAMES = ("QRMI_JOB_QPU_RESOURCES", "QRMI_JOB_QPU_TYPES")


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in (*NAMES, "SLURM_JOB_QPU_RESOURCES", "SLURM_JOB_QPU_TYPES", "QRMI_LIST_DELIMITER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("resources", "types", "delimiter", "expected"),
    [
        ("a,b", "iqm-server,x", None, (["a", "b"], ["iqm-server", "x"])),
        ("a:b", "x:y", ":", (["a", "b"], ["x", "y"])),
        ("a, b", "x,y", None, (["a", "b"], ["x", "y"])),
        ("", "", None, ([], [])),
    ],
)
def test_lists(monkeypatch, resources, types, delimiter, expected):
    monkeypatch.setenv(NAMES[0], resources)
    monkeypatch.setenv(NAMES[1], types)
    if delimiter:
        monkeypatch.setenv("QRMI_LIST_DELIMITER", delimiter)
    assert client.get_job_qpu_resources_and_types() == expected


def test_each_list_falls_back_to_its_old_name(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_QPU_RESOURCES", "a")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "x")
    assert client.get_job_qpu_resources_and_types() == (["a"], ["x"])


def test_old_names_are_told_to_the_log_callback(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_QPU_RESOURCES", "a")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "x")
    heard = []
    client.set_log_callback(lambda level, target, message: heard.append((level, message)))
    client.get_job_qpu_resources_and_types()
    client.set_log_callback(None)
    client.get_job_qpu_resources_and_types()
    assert [level for level, _ in heard] == ["WARNING"]
    assert "SLURM_JOB_QPU_RESOURCES" in heard[0][1]


def test_outside_a_job(monkeypatch):
    with pytest.raises(client.EnvVarNotSetError, match="QRMI_JOB_QPU_RESOURCES"):
        client.get_job_qpu_resources_and_types()


def test_lists_of_different_length(monkeypatch):
    monkeypatch.setenv(NAMES[0], "a,b")
    monkeypatch.setenv(NAMES[1], "x")
    with pytest.raises(client.ConfigError):
        client.get_job_qpu_resources_and_types()


def test_config_of_qrmi(tmp_path, caplog):
    entries = [
        {"name": "fez", "type": "ibm-quantum-system", "environment": {"QRMI_IBM_QS_IAM_APIKEY": "s3cret"}},
        {"name": "odd", "type": "no-such-type", "environment": {}},
    ]
    path = tmp_path / "qrmi_config.json"
    path.write_text(json.dumps({"resources": entries}))
    config = client.Config.load(path)
    assert list(config.resource_map) == ["fez"]
    assert config.resource_map["fez"].resource_type is client.ResourceType.IBMQuantumSystem
    assert "odd" in caplog.text
    assert "s3cret" not in repr(config)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"resources": 3}'])
def test_config_that_cannot_be_used_is_a_runtime_error(tmp_path, text):
    path = tmp_path / "c.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RuntimeError):
        client.Config.load(path)


def test_enums_have_the_numbers_of_qrmi():
    assert [int(member) for member in client.TaskStatus] == [0, 1, 2, 3, 4]
    assert int(client.ResourceType.OQTOPUS) == 7
    assert client.ResourceType.of("pasqal-local") is client.ResourceType.PasqalLocal
    assert str(client.TaskStatus.Queued) == "TaskStatus.Queued"
    with pytest.raises(client.UnsupportedResourceTypeError):
        client.ResourceType.of("nonsense")


def test_payloads_are_payloads():
    payload = client.Payload.IQMServer(iqmjson="{}", job_type="circuit", use_timeslot=False, tag="t")
    assert isinstance(payload, client.Payload)
    assert payload.kind == "iqm-server"


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("OPENQASM 2.0;\nqreg q[1];", "qasm2"),
        ("// a remark\nOPENQASM 3.0;", "qasm3"),
        ("OPENQASM 3;", "qasm3"),
        ("qubit q;", "qasm3"),
    ],
)
def test_version_of_a_program(program, kind):
    assert qasm(program, 1).kind == kind


def test_counts_of_other_results():
    assert client.counts('{"counter": {"01": 2}}') == {"01": 2}
    samples = '{"results": [{"data": {"c": {"samples": ["0x0", "0x3", "0x0"], "num_bits": 2}}}]}'
    assert client.counts(samples) == {"00": 2, "11": 1}
    for odd in ('{"results": []}', '{"results": [{"data": {"c": {"samples": [1], "num_bits": 2}}}]}', '{"results": 3}'):
        with pytest.raises(client.InvalidInputError):
            client.counts(odd)
    with pytest.raises(client.InvalidInputError):
        client.counts('{"values": []}')


def test_import_is_light():
    script = (
        "import sys, qtandem.core.client; print([m for m in ('pydantic', 'asyncio', 'aiohttp') if m in sys.modules])"
    )
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    assert out.stdout.strip() == "[]"


# What the qrmi package 0.26.4 exports, with the public methods of its classes.
QRMI = {
    "AuthenticationFailedError": "",
    "Config": "load resource_map",
    "ConfigError": "",
    "EnvVarNotSetError": "",
    "InvalidInputError": "",
    "Payload": "AliceBobFelis IQMServer Oqtopus PasqalCloud QiskitPrimitive",
    "QRMIService": "resource resources",
    "QrmiError": "",
    "QuantumResource": "acquire from_config is_accessible metadata release resource_id resource_type status target"
    " task_logs task_result task_start task_status task_stop",
    "ResourceCapacity": "available_slots max_slots",
    "ResourceDef": "environment is_dynamic name resource_type",
    "ResourceNotFoundError": "",
    "ResourceProvider": "least_busy resources",
    "ResourceStatus": "busy capacity healthy pending_job_count status status_reason to_dict",
    "ResourceStatusCode": "Offline Online Paused",
    "ResourceType": "AliceBobFelis IBMQiskitRuntimeService IBMQuantumComputeService IBMQuantumSystem IQMServer OQTOPUS"
    " PasqalCloud PasqalLocal",
    "Target": "value",
    "TaskNotFoundError": "",
    "TaskNotReadyError": "",
    "TaskResult": "value",
    "TaskStatus": "Cancelled Completed Failed Queued Running",
    "UnsupportedFunctionError": "",
    "UnsupportedPayloadError": "",
    "UnsupportedResourceTypeError": "",
    "get_job_qpu_resources_and_types": "",
    "set_log_callback": "",
}


def test_every_name_of_qrmi_is_there():
    missing = [name for name in QRMI if not hasattr(client, name)]
    for name, members in QRMI.items():
        owner = getattr(client, name, None)
        known = {*dir(owner), *getattr(owner, "__dataclass_fields__", ())}
        missing += [f"{name}.{member}" for member in members.split() if member not in known]
    assert missing == []
    errors = [name for name in QRMI if name.endswith("Error") and name != "QrmiError"]
    assert all(issubclass(getattr(client, name), client.QrmiError) for name in errors)
    assert issubclass(client.QrmiError, RuntimeError)
