import json
import os

import pytest

from qtandem.core.config import load
from qtandem.core.errors import QtandemError
from qtandem.core.managers import Grant
from qtandem.core.qrmi_config import read_qrmi_config

QCS = {f"QRMI_IBM_QCS_{key}": "v" for key in ("ENDPOINT", "IAM_ENDPOINT", "IAM_APIKEY", "SERVICE_CRN")}


@pytest.fixture
def site(tmp_path):
    """Writes both files and loads them: `site(toml, qrmi)`."""

    def write(toml="", qrmi=None, mode=0o600):
        qrmi_path = tmp_path / "qrmi_config.json"
        if qrmi is not None:
            qrmi_path.write_bytes(qrmi if isinstance(qrmi, bytes) else json.dumps({"resources": qrmi}).encode())
            qrmi_path.chmod(mode)
        path = tmp_path / "qtandem.toml"
        path.write_text(f'version = 1\n{toml}\n[daemon]\nqrmi_config = "{qrmi_path}"\n')
        return load(path)

    return write


def entry(name="fez", type="ibm-quantum-compute-service", environment=QCS, **more):
    return {"name": name, "type": type, "environment": environment, **more}


def test_nothing_configured_is_a_site_without_resources(tmp_path):
    path = tmp_path / "qtandem.toml"
    path.write_text("")
    assert not load(path).catalog.resources


def test_qrmis_file_of_today_loads_whole(site):
    keys = {
        "ibm-quantum-system": {
            f"QRMI_IBM_QS_{k}": "v" for k in ("ENDPOINT", "IAM_ENDPOINT", "IAM_APIKEY", "SERVICE_CRN")
        },
        "ibm-quantum-compute-service": QCS,
        "qiskit-runtime-service": {k.replace("QCS", "QRS"): v for k, v in QCS.items()},
        "pasqal-cloud": {},
        "pasqal-local": {"QRMI_URL": "http://warden"},
        "alice-bob-felis": {"QRMI_AB_FELIS_API_KEY": "a", "QRMI_AB_FELIS_BASE_ENDPOINT": "b"},
        "iqm-server": {"QRMI_IQM_ISA_ENDPOINT": "a", "QRMI_IQM_ISA_TOKEN": "b"},
        "oqtopus": {"QRMI_OQTOPUS_URL": "a", "QRMI_OQTOPUS_API_TOKEN": "b"},
    }
    loaded = site(qrmi=[entry(f"r{n}", kind, environment) for n, (kind, environment) in enumerate(keys.items())])
    assert not loaded.errors
    assert [resource.type for resource in loaded.catalog.resources.values()] == list(keys)
    told = [str(problem) for problem in loaded.problems if "has no provider" in str(problem)]
    assert len(told) == sum(not resource.has_provider for resource in loaded.catalog.resources.values())
    assert loaded.catalog.get("r4").settings == {"QRMI_WARDEN_URL": "http://warden"}


@pytest.mark.parametrize(
    ("entries", "key", "fix"),
    [
        ([entry(type="ibm-quantum-sistem")], "resources[0].type", "Did you mean ibm-quantum-system"),
        ([entry(type="IBM-Quantum-Compute-Service")], "resources[0].type", "Write ibm-quantum-compute-service"),
        ([entry(type="direct-access")], "resources[0].type", "Write ibm-quantum-system"),
        ([entry(type=7)], "resources[0].type", "types are"),
        ([{"name": "fez", "type": "pasqal-cloud"}], "resources[0].environment", "or {}"),
        ([entry(environment={**QCS, "N": 5})], "resources[0].environment.N", "quotes"),
        (
            [entry(environment={k.replace("QCS", "QRS"): v for k, v in QCS.items()})],
            "resources[0].environment.QRMI_IBM_QCS_ENDPOINT",
            "QRMI_IBM_QRS_ENDPOINT was renamed to QRMI_IBM_QCS_ENDPOINT",
        ),
        ([entry(is_dynamic="true")], "resources[0].is_dynamic", "without quotes"),
        ([entry(name="")], "resources[0].name", "name of its own"),
        ([entry(name="any")], "resources[0].name", "not any or claim"),
        (["x"], "resources[0]", "Write"),
    ],
)
def test_a_faulty_entry_is_one_line_with_path_key_and_fix_and_the_rest_loads(site, entries, key, fix):
    loaded = site(qrmi=[*entries, entry("good")])
    assert list(loaded.catalog.resources) == ["good"]
    found = next(problem for problem in loaded.errors if problem.key == key)
    line = str(found)
    assert fix in line
    assert "qrmi_config.json" in line
    assert "\n" not in line


def test_a_name_that_is_there_twice_is_used_in_neither_meaning(site):
    loaded = site(qrmi=[entry("fez"), entry("fez"), entry("good")])
    assert list(loaded.catalog.resources) == ["good"]
    assert [problem.key for problem in loaded.errors] == ["resources[1].name"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"{", "is not JSON"),
        (b"[]", "not a list"),
        (b"\xff\xfe", "is not JSON"),
    ],
)
def test_a_file_that_cannot_be_used_costs_its_resources_only(site, content, said):
    loaded = site('[resources.sim]\ntype = "simulator"', content)
    assert list(loaded.catalog.resources) == ["sim"]
    assert said in str(loaded.errors[0])


@pytest.mark.parametrize(("port", "warned"), [(7448, True), (748, False)])
def test_a_proxy_whose_port_any_user_could_take_is_warned_of(tmp_path, port, warned):
    path = tmp_path / "qtandem.toml"
    path.write_text(f'[daemon]\nproxy = "127.0.0.1:{port}"\nqrmi_config = "{tmp_path}/none"\n')
    loaded = load(path)
    assert not loaded.errors
    assert any("CAP_NET_BIND_SERVICE" in str(problem) for problem in loaded.problems) is warned


def test_keys_that_others_can_read_are_warned_of(site):
    loaded = site(qrmi=[entry()], mode=0o644)
    assert not loaded.errors
    assert any("chmod 600" in str(problem) for problem in loaded.problems)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_said(site):
    assert any("cannot be read" in str(problem) for problem in site(qrmi=[entry()], mode=0o000).errors)


def test_a_directory_in_place_of_the_file_is_said(tmp_path):
    problems = []
    read_qrmi_config(tmp_path, problems)
    assert "cannot be read" in str(problems[0])


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[daemon]\nsockt = '/x'", "daemon.sockt: is not a key. Did you mean socket?"),
        ("[resources.fez]\nslot = 2", "resources.fez.slot: is not a key. Did you mean slots?"),
        ("[resources.fez]\nslots = 0", "resources.fez.slots: "),
        ("[resources.fez]\nslots = 'two'", "resources.fez.slots: "),
        ("[resources.fez]\nmax_wait = 'soon'", "resources.fez.max_wait: "),
        ("[resources.fez]\nnative = '1-x'", "resources.fez.native: '1-x'"),
        ("[nonsense]", "nonsense: is not a key"),
        ("version = 2", "version: "),
        ("x = ", "is not TOML"),
    ],
)
def test_the_whole_file_is_refused_with_the_key_and_a_hint(tmp_path, toml, said):
    path = tmp_path / "qtandem.toml"
    path.write_text(toml)
    with pytest.raises(QtandemError) as caught:
        load(path)
    assert caught.value.code == "bad-config"
    assert said in caught.value.cause
    assert str(path) in caught.value.cause


def test_toml_extends_a_resource_of_qrmis_file(site):
    loaded = site('[resources.fez]\nslots = 3\nmax_wait = "40m"\nallow.users = ["bob"]', [entry()])
    fez = loaded.catalog.get("fez")
    assert (fez.slots, fez.max_wait_s) == (3, 2400.0)
    assert not fez.access.permits("alice", None)
    assert "QRMI_IBM_QCS_IAM_APIKEY" not in repr(fez)


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ("[resources.nobody]\nslots = 2", "resources.nobody"),
        ('[resources.x]\ntype = "toaster"', "resources.x.type"),
        ('[resources.a-b]\ntype = "simulator"\n[resources.a_b]\ntype = "simulator"', "resources.a_b"),
        ('[resources.any]\ntype = "simulator"', "resources.any"),
        ('[resources.""]\ntype = "simulator"', "resources."),
        ('[resources." "]\ntype = "simulator"', "resources. "),
        ('[classes]\nfast = "nobody"', "classes.fast"),
        ('[classes]\nfast = "a:b:c"', "classes.fast"),
        ('[classes]\nany = "x"', "classes.any"),
        ('[classes]\nsim = "sim"\n[resources.sim]\ntype = "simulator"', "classes.sim"),
        ('[resources.x]\ntype = "simulator"\nreachable_from.nodes = "c[1-"', "resources.x.reachable_from.nodes"),
    ],
)
def test_faults_between_entries_cost_the_entry(site, toml, key):
    assert [problem.key for problem in site(toml).errors] == [key]


def test_secrets_come_from_files_that_only_their_owner_reads(site, tmp_path):
    secret = tmp_path / "key"
    secret.write_text("s3cret\n")
    toml = f'[resources.x]\ntype = "simulator"\nsecrets.TOKEN = "{secret}"'
    secret.chmod(0o644)
    assert "others can read it" in str(site(toml).errors[0])
    secret.chmod(0o600)
    loaded = site(toml)
    assert loaded.catalog.get("x").settings["TOKEN"] == "s3cret"
    assert "s3cret" not in repr(loaded)
    secret.unlink()
    assert "resources.x.secrets.TOKEN" in str(site(toml).errors[0])
    elsewhere = load(tmp_path / "qtandem.toml", secrets=False)
    assert not elsewhere.errors
    assert "x" in elsewhere.catalog.resources


@pytest.mark.parametrize(
    ("name", "native"),
    [("ibm-q.x", "ibm_q_x"), ("1st", "q1st"), ("qé", "q_"), ("x" * 200, "x" * 39), ("iqm:m", "iqm_m")],
)
def test_any_name_gets_one_that_shells_and_managers_accept(site, name, native):
    loaded = site(f'[resources."{name}"]\ntype = "simulator"')
    assert loaded.catalog.get(native).name == name


def test_a_class_means_what_it_says(site):
    loaded = site('[classes]\nbest = "a/b"\n[resources.a]\ntype = "simulator"\n[resources.b]\ntype = "simulator"')
    assert str(loaded.catalog.classes["best"]) == "a/b"
    assert Grant("a") != Grant("b")
