"""Providers whose extra is not installed."""

import sys
import tomllib
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.providers.base import EXTRAS, PROVIDERS
from qtandem.core.providers.child import load

CLIENTS = {"ibm": "qiskit_ibm_runtime", "ibm-system": "boto3", "braket": "braket", "qrmi": "qrmi"}


@pytest.mark.parametrize("type_", sorted(kind for kind, extra in EXTRAS.items() if extra in CLIENTS))
def test_the_error_names_the_extra(type_, monkeypatch):
    package = PROVIDERS[type_].partition(":")[0].rpartition(".")[0]
    for name in [name for name in sys.modules if name.startswith(package)]:
        monkeypatch.delitem(sys.modules, name)
    client = CLIENTS[EXTRAS[type_]]
    for name in [name for name in sys.modules if name == client or name.startswith(f"{client}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, client, None)
    with pytest.raises(QtandemError) as caught:
        load(type_)
    assert caught.value.code == "no-provider"
    assert f"extra {EXTRAS[type_]}" in caught.value.message
    assert caught.value.remedy == f"Beside the daemon: pip install 'qtandem[{EXTRAS[type_]}]'"
    assert client in caught.value.cause


def test_every_provider_names_an_extra_that_exists():
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    assert EXTRAS.keys() == PROVIDERS.keys()
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])
