"""Which devices of a vendor's listing become resources, and why the others do not."""

from __future__ import annotations

import pytest

from qtandem.core import config, discovery
from qtandem.core.discovery import Device
from qtandem.core.errors import QtandemError
from qtandem.core.resources import Resource

FEZ = Device("ibm_fez", qubits=156, simulator=False, max_shots=100_000)


@pytest.mark.parametrize(
    ("filter", "why"),
    [
        ("", ""),
        ("qubits=100:name=ibm_*", ""),
        ("num_qubits=127&status=online&is_simulator=false", ""),
        ("qubits=200", "qubits is 156"),
        ("name=*torino", "name is ibm_fez"),
        ("is_simulator=true", "simulator is False"),
        ("max_shots=200000", "shots is 100000"),
    ],
)
def test_a_filter_of_ours_or_of_qrmis_takes_a_device_or_says_why_not(filter: str, why: str) -> None:
    found = discovery.refusal(filter, FEZ)
    assert found.startswith(why) if why else not found


def test_simulators_are_taken_only_when_named_and_what_is_not_said_is_not_taken() -> None:
    simulator = Device("sim", qubits=32, simulator=True)
    assert "simulator" in discovery.refusal("", simulator)
    assert not discovery.refusal("is_simulator=true", simulator)
    assert "not known" in discovery.refusal("qubits=1", Device("ibm_odd"))


@pytest.mark.parametrize("filter", ["queue=3", "by=queue", "qubits", "colour=red", "5"])
def test_a_filter_that_cannot_be_meant_is_refused(filter: str) -> None:
    with pytest.raises(QtandemError):
        discovery.parsed(filter)


def test_odd_rows_cost_themselves_only() -> None:
    rows = [{"name": "a", "qubits": "many", "queue": True}, {"name": "../b"}, {"name": "any"}, {}, {"name": "a"}]
    assert discovery.devices(rows) == [Device("a")]


def test_a_device_is_as_its_template_but_for_what_is_its_own() -> None:
    template = Resource("all", "ibm-quantum-system", "all", slots=3, settings={"k": "v"}, max_queue=5)
    made = discovery.made_from(template, FEZ, "ibm_fez")
    assert (made.name, made.qubits, made.slots, made.max_queue, made.template) == ("ibm_fez", 156, 3, 5, "all")
    assert made.settings == {"k": "v", "backend": "ibm_fez"}


def test_only_vendors_that_list_devices_can_be_dynamic(tmp_path) -> None:
    site = tmp_path / "qtandem.toml"
    site.write_text(
        f'daemon.qrmi_config = "{tmp_path}/none"\n[resources.a]\ntype = "simulator"\ndynamic = true\n'
        '[resources.b]\ntype = "ibm-quantum-system"\ndynamic = true\nfilter = "num_qubits=100"\n'
    )
    loaded = config.load(site)
    assert "cannot be dynamic" in str(loaded.errors[0])
    assert (list(loaded.catalog.resources), list(loaded.catalog.templates)) == ([], ["b"])
