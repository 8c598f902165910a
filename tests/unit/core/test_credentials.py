"""Secrets that the service manager hands over."""

from __future__ import annotations

import pytest

from qtandem.core import config
from qtandem.core.credentials import credential, open_to_others
from qtandem.core.settings import Settings
from qtandem.daemons import daemon


@pytest.fixture
def handed(tmp_path, monkeypatch):
    folder = tmp_path / "credentials"
    folder.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    return folder


def test_only_what_was_handed_over_counts(handed, monkeypatch):
    assert credential("master.key") is None
    (handed / "master.key").write_text("x")
    assert credential("master.key") == handed / "master.key"
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert credential("master.key") is None


def test_group_bits_are_an_access_list_only_on_files_of_roots_group():
    assert not open_to_others(0o100440, 0, 0)
    assert open_to_others(0o100440, 0, 5)
    assert open_to_others(0o100440, 1000, 1000)
    assert open_to_others(0o100604, 0, 0)
    assert not open_to_others(0o100600, 1000, 1000)


def test_a_secret_file_comes_first_so_that_a_reload_takes_up_a_new_one(handed, tmp_path):
    file, site = tmp_path / "api", tmp_path / "qtandem.toml"
    site.write_text(
        f'[daemon]\nqrmi_config = "{tmp_path}/none"\n'
        f'[resources.a]\ntype = "simulator"\nsecrets = {{ api_key = "{file}" }}\n'
    )
    (handed / "secrets_api").write_text("from the service manager\n")
    (handed / "secrets_api").chmod(0o400)
    assert config.load(site).catalog.get("a").settings["api_key"] == "from the service manager"
    file.write_text("new\n")
    file.chmod(0o600)
    assert config.load(site).catalog.get("a").settings["api_key"] == "new"


def test_the_daemon_uses_the_master_key_that_was_handed_over(handed, tmp_path):
    given = handed / "master.key"
    made = daemon.cipher.load(given).seal("text", "label")
    place = Settings.model_validate({"daemon": {"master_key": str(tmp_path / "other.key")}})
    assert daemon.master_key(place.daemon) == given
    assert daemon.cipher.load(daemon.master_key(place.daemon)).unseal(made, "label") == "text"
    given.unlink()
    assert daemon.master_key(place.daemon) == tmp_path / "other.key"
