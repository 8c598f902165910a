import json
import tomllib
from importlib import metadata

import pytest

from qtandem.core.config import load
from qtandem.core.settings import Settings
from qtandem.daemons.commands.toml import document, example, plain


@pytest.fixture
def site(tmp_path):
    def write(toml="", resources=None):
        (tmp_path / "key").write_text("s3cret")
        (tmp_path / "key").chmod(0o600)
        qrmi = tmp_path / "qrmi_config.json"
        if resources is not None:
            qrmi.write_text(json.dumps({"resources": resources}))
            qrmi.chmod(0o600)
        path = tmp_path / "qtandem.toml"
        path.write_text(f"[daemon]\nqrmi_config = '{qrmi}'\n{toml}")
        return str(path)

    return write


def test_check_of_a_good_file(qtandem, site):
    ran = qtandem("config", "check", "--config", site("[resources.sim]\ntype = 'simulator'"))
    assert ran.status == 0
    assert ran.out.startswith("ok: ")
    assert "1 resources" in ran.out


def test_check_says_path_key_and_fix_on_one_line(qtandem, site):
    path = site("[resources.sim]\ntype = 'simulator'\nslotz = 2")
    ran = qtandem("config", "check", "--config", path)
    assert ran.status == 5
    assert len(ran.out.splitlines()) == 1
    assert path in ran.out
    assert "resources.sim.slotz" in ran.out
    assert "Did you mean slots?" in ran.out


def test_check_of_warnings_only_is_status_0(qtandem, site):
    path = site(
        resources=[
            {"name": "p", "type": "oqtopus", "environment": {"QRMI_OQTOPUS_URL": "u", "QRMI_OQTOPUS_API_TOKEN": "t"}}
        ]
    )
    ran = qtandem("config", "check", "--config", path)
    assert ran.status == 0
    assert ran.out.startswith("warning: ")


def test_check_warns_of_a_vendor_whose_extra_is_not_installed(qtandem, site, monkeypatch):
    installed = metadata.version

    def version(name):
        if name == "amazon-braket-sdk":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", version)
    wants = ["requests>=2", "amazon-braket-sdk<2,>=1.100; extra == 'braket'", 'qrmi>=0.1; extra == "qrmi"']
    monkeypatch.setattr(metadata, "requires", lambda _: wants)
    path = site("[resources.aria]\ntype = 'braket'\n[resources.sim]\ntype = 'simulator'")
    ran = qtandem("config", "check", "--config", path)
    assert ran.status == 0
    assert ran.out.splitlines() == [
        f"warning: {path}: resources.aria: its type braket needs qtandem's extra braket; not installed: "
        "amazon-braket-sdk. Beside the daemon: pip install 'qtandem[braket]'"
    ]


def test_check_of_a_bad_entry_keeps_the_rest(qtandem, site):
    path = site(resources=[{"name": "p", "type": "Pasqal-Cloud", "environment": {}}])
    ran = qtandem("config", "check", "--config", path, "--json")
    answer = json.loads(ran.out)
    assert (ran.status, answer["ok"]) == (5, False)
    assert answer["problems"][0]["fix"] == "Write pasqal-cloud."


def test_show_tells_what_is_in_force_without_secrets(qtandem, site, tmp_path):
    path = site(
        f"database = 'postgresql://q:hunter2@db/q'\n"
        f"[resources.sim]\ntype = 'simulator'\nslots = 2\nsecrets = {{ key = '{tmp_path / 'key'}' }}"
    )
    ran = qtandem("config", "show", "--config", path)
    assert ran.status == 0
    assert "s3cret" not in ran.out + ran.err
    assert "hunter2" not in ran.out + ran.err
    shown = tomllib.loads(ran.out)
    assert shown["resources"]["sim"]["slots"] == 2
    assert shown["timing"]["heartbeat_s"] == 5
    assert json.loads(qtandem("config", "show", "--config", path, "--json").out)["resources"]["sim"]["slots"] == 2


def test_show_reads_back_as_the_same_settings():
    settings = Settings.model_validate(
        {"resources": {"a.b": {"type": "simulator", "settings": {"x": 'q"\\\n', "n": 0.5, "on": True}}}}
    )
    assert Settings.model_validate(tomllib.loads(document(plain(settings)))) == settings


def test_the_example_is_valid_and_changes_nothing(tmp_path):
    path = tmp_path / "qtandem.toml"
    path.write_text(example())
    assert load(path).settings.timing == Settings().timing
    assert load(path).errors == ()


def test_the_example_is_valid_when_every_key_is_uncommented(tmp_path):
    lines = []
    for line in example().splitlines():
        bare = line.removeprefix("# ")
        is_key = line.startswith("# ") and (" = " in bare or bare.startswith("[")) and not bare.startswith("  ")
        lines.append(bare if is_key and not bare.split("  #")[0].rstrip().endswith("=") else line)
    text = "\n".join(lines)
    Settings.model_validate(tomllib.loads(text))
    for model in (Settings.model_fields["daemon"].annotation, Settings.model_fields["timing"].annotation):
        for name in model.model_fields:
            assert f"{name} = " in text


def test_check_finds_what_would_keep_the_daemon_from_starting(tmp_path, qtandem):
    path = tmp_path / "qtandem.toml"
    path.write_text('[daemon]\nlisten = "7447"\n[managers.slrum]\ncluster = "x"\n[managers.pbs]\n[managers.local]\n')
    ran = qtandem("config", "check", "--config", str(path))
    assert ran.status == 5
    assert [line.split(": ")[2] for line in ran.out.splitlines()] == [
        "managers.slrum",
        "managers.pbs.cluster",
        "daemon.listen",
    ]
    assert "Did you mean slurm?" in ran.out
