from dataclasses import replace

import pytest

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Calibration, Fact
from qtandem.core.managers import Grant
from qtandem.core.requests import parse
from qtandem.core.resources import CLOSED, Access, Catalog, Reach, Resource
from qtandem.core.verdicts import Asker, Situation, openness, start, submit

ALICE = Asker(1000, "alice", "physics", ("quantum",))


def qpu(name, **fields):
    return Resource(name=name, type="simulator", native=name, **fields)


CATALOG = Catalog(
    {
        resource.name: resource
        for resource in (
            qpu("fez", slots=2, vendor="ibm", price=5.0),
            qpu("torino", vendor="ibm", price=1.0),
            qpu("garnet", vendor="iqm", qubits=20, access=Access(accounts=frozenset({"chem"}))),
            qpu("far", reach=Reach.of(["remote"], "")),
            qpu("felis", has_provider=False),
        )
    },
    {"fast": parse("fez/torino")},
)


def fact(name, availability="online", at=100.0, **fields):
    return Fact(resource=name, availability=availability, at=at, ttl_s=30, **fields)


def situation(*facts, now=100.0, **leased):
    return Situation({one.resource: one for one in facts}, leased, now)


OPEN = situation(fact("fez"), fact("torino", calibration=Calibration(qubits=133)))


def judge(text, asker=ALICE, native=(), where=OPEN):
    return submit(parse(text) if text else None, native, asker, CATALOG, where)


def refused(text, **given):
    with pytest.raises(QtandemError) as caught:
        judge(text, **given)
    return caught.value


def test_a_job_without_a_qpu_has_no_verdict():
    assert judge(None) is None


def test_a_plain_name_is_granted_whether_open_or_not():
    assert judge("fez:2", where=situation()).grants == (Grant("fez", 2),)


def test_all_of_several():
    assert judge("fez+torino").grants == (Grant("fez"), Grant("torino"))


def test_one_of_several_prefers_the_open_one_then_the_shorter_wait_then_the_order():
    assert judge("fez/torino").grants == (Grant("fez"),)
    assert judge("fez/torino", where=situation(fact("torino"))).grants == (Grant("torino"),)
    both = situation(fact("fez", wait_s=90), fact("torino", wait_s=10))
    assert judge("fez/torino", where=both).grants == (Grant("torino"),)
    full = situation(fact("fez"), fact("torino"), fez=2)
    assert judge("fez/torino", where=full).grants == (Grant("torino"),)


def test_a_class_is_what_the_site_says():
    assert judge("fast:2").grants == (Grant("fez", 2),)


def test_ranking_by_cost():
    assert judge("any:vendor=ibm:by=cost").grants == (Grant("torino"),)


def test_the_managers_own_field_is_a_request_too():
    assert judge(None, native=(Grant("fez", 2),)).grants == (Grant("fez", 2),)
    assert judge("fez:2", native=(Grant("fez", 2),)).grants == (Grant("fez", 2),)
    assert refused("fez", native=(Grant("torino"),)).code == "ambiguous"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("fezz", "unknown-resource", "Did you mean fez"),
        ("garnet", "not-allowed", "user alice, account physics"),
        ("fez:3", "too-many-slots", "fez:2"),
        ("far", "unreachable", "remote"),
        ("felis", "no-provider", "no provider"),
        ("torino:qubits=1000", "impossible", "133"),
        ("fez:by=score", "needs-selection", "queue"),
        ("any:vendor=nobody", "impossible", "None of the choices"),
        ("fast+torino:qubits=1", None, None),
    ],
)
def test_refusals_name_what_and_why_and_what_instead(text, code, words):
    if code is None:
        assert judge(text).grants == (Grant("fez"), Grant("torino"))
        return
    error = refused(text)
    assert error.code == code
    assert words in " ".join(error.lines())


def test_one_unreachable_partition_of_several_is_refused():
    asker = Asker(1000, "alice", None, ("remote", "quantum"))
    assert refused("far", asker=asker).code == "unreachable"
    assert judge("far", asker=Asker(1000, "alice", None, ("remote",))).grants == (Grant("far"),)


def test_a_queue_that_is_too_long_now_is_waited_for():
    where = situation(fact("fez", queue=50))
    assert judge("fez:queue=10", where=where).grants == (Grant("fez"),)


def test_what_to_write_instead_begins_with_what_is_open():
    for open_, first in (("fez", "fez"), ("torino", "torino")):
        where = situation(*(fact(name, "online" if name == open_ else "offline") for name in ("fez", "torino")))
        assert f"Write for example --qpu={first};" in refused("garnet", where=where).remedy


@pytest.mark.parametrize(
    ("text", "typed"),
    [("fez:3", "Write -l qpu=fez:2 at most"), ("torino:qubits=1000", "Write -l qpu=torino:qubits=133 or less"),
     ("garnet", "Write for example -l qpu=fez;"), ("fezz", "Write -l qpu=fez.")],
)  # fmt: skip
def test_what_to_write_instead_is_written_as_the_users_manager_has_it(text, typed):
    assert typed in refused(text, asker=replace(ALICE, spelling="-l qpu={}")).remedy


def test_a_start_is_refused_where_the_submit_rules_were_gone_round():
    with pytest.raises(QtandemError) as caught:
        start((Grant("garnet"),), ALICE, CATALOG)
    assert caught.value.code == "not-allowed"


def test_open_needs_a_fresh_fact_that_is_online_with_a_slot_left():
    fez = CATALOG.get("fez")
    assert openness(fez, fact("fez"), 0, 100).free == 2
    assert not openness(fez, None, 0, 100).open
    stale = openness(fez, fact("fez"), 0, 131)
    assert not stale.open
    assert "stale" in stale.reason
    assert not openness(fez, fact("fez"), 2, 100).open
    assert openness(fez, fact("fez", free_slots=1), 0, 100).free == 1
    assert "others hold" in openness(fez, fact("fez", free_slots=0), 0, 100).reason


@pytest.mark.parametrize("kind", [kind for kind in Availability if kind is not Availability.ONLINE])
def test_all_but_online_is_closed_until_the_admin_says_otherwise(kind):
    closed = openness(qpu("x"), fact("x", kind, reason="calibrating", opens_at=160), 0, 100)
    assert not closed.open
    assert "calibrating" in closed.reason
    assert "60 s" in closed.reason
    assert openness(qpu("x", effects={**CLOSED, kind: "open"}), fact("x", kind), 0, 100).open


def test_the_admins_limits_close():
    assert "queue of 12" in openness(qpu("x", max_queue=10), fact("x", queue=12), 0, 100).reason
    assert "40 min" in openness(qpu("x", max_wait_s=60), fact("x", wait_s=2400), 0, 100).reason
    assert openness(qpu("x", max_queue=10), fact("x"), 0, 100).open


def test_a_loop_goes_to_a_qpu_with_sessions_first_and_is_warned_where_there_is_none():
    plain = Resource(name="aria", type="braket", native="aria")
    steady = Resource(name="fez", type="ibm-quantum-compute-service", native="fez")
    alone, both = Catalog({"aria": plain}), Catalog({"aria": plain, "fez": steady})

    def asked(text, catalog):
        return submit(parse(text), (), ALICE, catalog, situation(fact("aria"), fact("fez")))

    chosen = asked("any:loop=true", both)
    assert (chosen.grants, chosen.warning) == ((Grant("fez"),), "")
    assert asked("any", both).grants == (Grant("aria"),)
    named = asked("aria:loop=true", both)
    assert named.grants == (Grant("aria"),)
    assert "aria has no sessions" in named.warning
    assert "--qpu=fez:loop=true" in named.warning
    assert "fez" not in asked("aria:loop=true", alone).warning
    assert asked("aria:loop=false", both).warning == asked("aria", both).warning == ""
