import pytest

from qtandem.core.managers import Grant, SensorValue
from qtandem.slurm import licences
from qtandem.slurm.licences import Licence
from tests.fakes.slurm.cluster import VERSIONS, recorded


@pytest.mark.parametrize("version", VERSIONS)
def test_a_real_listing_is_read_and_other_servers_are_left_out(version: str) -> None:
    shown = licences.read_show(recorded("licences", version), "qtandem")
    assert "other" not in shown
    assert shown["q1"] == Licence(total=4, used=4, reserved=0, consumed=0, deficit=0)
    assert (shown["q2"].deficit, shown["q2"].open) == (8, 0)


@pytest.mark.parametrize(
    ("text", "grants"),
    [
        ("fez@qtandem:2", (Grant("fez", 2),)),
        ("fez@qtandem", (Grant("fez", 1),)),
        ("fez@qtandem=3", (Grant("fez", 3),)),
        ("matlab:3,fez@qtandem:1,x@ibm:2", (Grant("fez", 1),)),
        ("fez@qtandem:1,fez@qtandem:1", (Grant("fez", 2),)),
        ("ibm_x@qtandem:1", (Grant("ibm-x", 1),)),
        ("fez@qtandem2:1,@qtandem,qtandem", ()),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_grants_in_a_licence_text(text: str, grants: tuple[Grant, ...]) -> None:
    assert licences.read_request(text, "qtandem", {"fez": "fez", "ibm_x": "ibm-x"}) == grants


@pytest.mark.parametrize(
    ("closed", "used", "consumed"),
    [(3, 0, 6), (3, 3, 6), (9, 1, 6), (0, 2, 0), (1, 0, 1), (1, 2, 3)],
    ids=["closed", "closed-in-use", "more-than-all", "open", "partly", "partly-in-use"],
)
def test_the_value_to_write(closed: int, used: int, consumed: int) -> None:
    assert licences.consumed(SensorValue("fez", 3, closed), used) == consumed


def test_a_closed_sensor_that_a_running_job_would_open_does_not_hold() -> None:
    closed = SensorValue("fez", 1, 1)
    assert not licences.holds(closed, Licence(1, 1, 0, consumed=1, deficit=0))
    assert licences.holds(closed, Licence(1, 1, 0, consumed=2, deficit=1))


def test_reserved_licences_are_not_open() -> None:
    assert Licence(total=2, used=0, reserved=2, consumed=0, deficit=0).open == 0


def test_slurms_own_default_server_holds_other_licences_too() -> None:
    text, names = "matlab@slurmdb:2,ibm_x@slurmdb:1,fez@qtandem", {"ibm_x": "ibm-x"}
    assert licences.read_request(text, "slurmdb", names) == (Grant("ibm-x", 1),)
    assert licences.others(text, "slurmdb", names) == ["matlab@slurmdb:2", "fez@qtandem"]
    assert licences.others("matlab:1, fez@qtandem:2", "qtandem", {}) == ["matlab:1"]
