"""What IBM lists, read without changing anything there."""

import pytest

from qtandem.core.errors import QtandemError


def test_the_cloud_lists_what_the_instance_has(compute, cloud):
    rows = {row["name"]: row for row in compute().discover(False)}
    assert rows["ibm_fake"] == {
        "name": "ibm_fake", "qubits": 3, "simulator": False, "queue": 0, "status": "online"
    }  # fmt: skip
    assert rows["ibm_other"]["queue"] == 7
    assert not cloud.writes()


def test_details_are_asked_for_each_device_only_when_they_are_wanted(compute, cloud):
    cloud.listed = True
    with pytest.raises(QtandemError):
        compute().discover(True)  # the other device has no configuration in the fake
    assert [request.path for request in cloud.seen if request.path.endswith("configuration")]


def test_the_machine_tells_its_backend(system, machine):
    [row] = system().discover(False)
    assert (row["name"], row["qubits"], row["max_shots"], row["simulator"]) == ("ibm_fake", 3, 5000, False)
    assert not machine.writes()


def test_a_listing_that_cannot_be_read_is_no_empty_one(compute, cloud):
    cloud.fault("missing", path="backends$", fields=("devices",))
    with pytest.raises(QtandemError) as caught:
        compute().discover(False)
    assert caught.value.code == "vendor-error"
