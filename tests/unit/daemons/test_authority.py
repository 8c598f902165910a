from __future__ import annotations

import os

import pytest

from qtandem.core.errors import QtandemError
from qtandem.daemons.authority import TABLE, Authority, Caller, Event, Right, Service, render, service

SLURM = 64030
HOST = "daemon"


@pytest.fixture
def authority() -> Authority:
    made = Authority({"slurm": Service(frozenset({SLURM}), frozenset({"ctl", "ctl2.site"}))})
    made._own = 999
    return made


def code(authority: Authority, event: Event, caller: Caller, **about: object) -> str:
    try:
        return authority.require(event, caller, **about).name
    except QtandemError as error:
        return error.code


@pytest.mark.parametrize(
    ("caller", "allowed"),
    [
        (Caller(0, HOST), True),
        (Caller(SLURM, HOST), True),
        (Caller(999, HOST), True),
        (Caller(SLURM, "ctl", local=False), True),
        (Caller(SLURM, "ctl.site", local=False), True),
        (Caller(0, "ctl2", local=False), True),
        (Caller(0, "c1", local=False), False),
        (Caller(SLURM, "c1", local=False), False),
        (Caller(999, "c1", local=False), False),
        (Caller(1000, HOST), False),
        (Caller(1000, "ctl", local=False), False),
    ],
)
def test_lifecycle_events_come_from_the_manager_alone(authority: Authority, caller: Caller, allowed: bool) -> None:
    for event in (Event.START, Event.END):
        assert code(authority, event, caller, manager="slurm") == ("SERVICE" if allowed else "not-authorised")


def test_without_listed_hosts_only_the_daemons_own_host_counts() -> None:
    authority = Authority({"slurm": Service(frozenset({SLURM}), frozenset())})
    assert code(authority, Event.START, Caller(SLURM, HOST), manager="slurm") == "SERVICE"
    assert code(authority, Event.START, Caller(0, "c1", local=False), manager="slurm") == "not-authorised"


def test_one_managers_user_reports_nothing_for_another() -> None:
    authority = Authority(
        {"slurm": Service(frozenset({SLURM}), frozenset()), "pbs": Service(frozenset({77}), frozenset())}
    )
    assert code(authority, Event.START, Caller(SLURM, HOST), manager="pbs") == "not-authorised"


def test_a_user_submits_for_itself_only(authority: Authority) -> None:
    assert code(authority, Event.SUBMIT, Caller(1000, HOST), manager="slurm", owner=1000) == "OWNER"
    assert code(authority, Event.SUBMIT, Caller(1000, HOST), manager="slurm", owner=1001) == "not-yours"
    assert code(authority, Event.SUBMIT, Caller(SLURM, HOST), manager="slurm", owner=1001) == "SERVICE"


def test_root_of_a_node_gets_the_environment_of_runs_there_and_nothing_else(authority: Authority) -> None:
    node = Caller(0, "c1", local=False)
    about = {"manager": "slurm", "owner": 1000, "nodes": ("c1", "c2")}
    assert code(authority, Event.ENVIRONMENT, node, **about) == "NODE"
    assert code(authority, Event.ENVIRONMENT, Caller(0, "c3", local=False), **about) == "not-yours"
    assert code(authority, Event.ENVIRONMENT, Caller(1, "c1", local=False), **about) == "not-yours"
    for event in (Event.TASK, Event.CLAIM, Event.READ_OWN, Event.EXPLAIN):
        assert code(authority, event, node, **about) == "not-yours"


def test_tasks_are_the_owners_and_roots_not_the_managers(authority: Authority) -> None:
    assert code(authority, Event.TASK, Caller(1000, "c1", local=False), owner=1000) == "OWNER"
    assert code(authority, Event.TASK, Caller(SLURM, HOST), owner=1000) == "not-yours"
    assert code(authority, Event.TASK, Caller(0, HOST), owner=1000) == "SERVICE"


def test_admins_see_everybodys_runs_but_act_for_nobody() -> None:
    authority = Authority({}, admins=["1234"])
    admin = Caller(1234, HOST)
    assert authority.sees_all(admin)
    assert code(authority, Event.EXPLAIN, admin, owner=1000) == "SERVICE"
    assert code(authority, Event.TASK, admin, owner=1000) == "not-yours"
    assert code(authority, Event.START, admin, manager="slurm") == "not-authorised"


def test_everybody_reads_resources(authority: Authority) -> None:
    assert code(authority, Event.READ, Caller(4242, "c9", local=False)) == "ANYONE"


def test_an_unknown_service_user_reports_nothing() -> None:
    assert service(["no-such-user-here", "12"], ()).uids == {12}


def test_the_table_is_whole_and_can_be_shown() -> None:
    assert all(set(TABLE[event]) == set(Right) for event in Event)
    assert render().count("\n") == len(Event) + 2
    assert "| start | yes | where hooks run on nodes | where hooks run as the job's user | no |" in render()


def test_the_daemons_own_user_is_trusted_on_its_host() -> None:
    assert Authority({}).is_service(Caller(os.geteuid(), HOST))
