from __future__ import annotations

from dataclasses import replace

import pytest

from qtandem.core.availability.attributes import KINDS, attributes
from qtandem.core.availability.publish import due, sensor_values
from qtandem.core.facts import Availability, Calibration, Fact
from qtandem.core.managers import SensorValue
from qtandem.core.resources import Resource

NOW = 1000.0
FEZ = Resource("fez", "ibm-quantum-compute-service", "fez", slots=2, vendor="ibm")
DEVICE = Calibration(qubits=156, basis_gates=("cz", "rz"), two_qubit_error=0.003, t1_s=2e-4, max_shots=10_000)
FACT = Fact(
    resource="fez", at=NOW, ttl_s=30.0, availability=Availability.ONLINE, queue=7, wait_s=60.0, calibration=DEVICE
)


def known(resource: Resource = FEZ, fact: Fact | None = FACT, now: float = NOW) -> dict[str, object]:
    return dict(attributes(resource, fact, now, KINDS))


def test_what_the_vendor_says_can_be_selected_by() -> None:
    assert known() == {
        "qubits": 156,
        "max_shots": 10_000,
        "queue": 7,
        "wait_s": 60.0,
        "error": 0.003,
        "t1_s": 2e-4,
        "simulator": 0,
        "vendor": "ibm",
        "type": "ibm-quantum-compute-service",
        "basis": "cz+rz",
    }


def test_what_is_not_said_is_not_there_and_never_zero() -> None:
    assert known(fact=None) == {"simulator": 0, "vendor": "ibm", "type": "ibm-quantum-compute-service"}
    plain = Fact(resource="fez", at=NOW, ttl_s=30.0, availability=Availability.ONLINE)
    assert known(fact=plain) == known(fact=None)


def test_a_queue_that_is_said_to_be_empty_is_zero() -> None:
    assert known(fact=FACT.model_copy(update={"queue": 0}))["queue"] == 0


def test_what_is_true_of_now_goes_with_a_stale_fact_and_the_device_stays() -> None:
    later = known(now=NOW + 31.0)
    assert not {"queue", "wait_s"} & later.keys()
    assert (later["qubits"], later["basis"]) == (156, "cz+rz")


def test_the_site_s_own_numbers_go_first() -> None:
    own = known(replace(FEZ, qubits=100, max_shots=50))
    assert (own["qubits"], own["max_shots"]) == (100, 50)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_each_is_of_its_kind(name: str) -> None:
    value = known(replace(FEZ, simulator=True)).get(name)
    assert value is None or isinstance(value, str) is (KINDS[name] == "text")


def test_only_a_manager_that_shows_some_is_written_to_for_them() -> None:
    changed = FACT.model_copy(update={"queue": 8})
    for shown, writes in (((), 0), (("qubits",), 0), (("qubits", "queue"), 1)):
        before = sensor_values([FEZ], {"fez": FACT}, {}, NOW, shown)
        after = sensor_values([FEZ], {"fez": changed}, {}, NOW, shown)
        assert len(due(after, before)) == writes
    assert sensor_values([FEZ], {"fez": FACT}, {}, NOW)["fez"] == SensorValue("fez", 2, 0)
    assert sensor_values([FEZ], {"fez": FACT}, {}, NOW, ("qubits",))["fez"].attributes == (("qubits", 156),)
