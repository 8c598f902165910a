"""What a relay says of its callers' uids is believed for runs on its own node."""

from __future__ import annotations

import pytest

from qtandem.core.errors import QtandemError
from qtandem.daemons.authority import Authority, Caller, Event, Right, service

ALICE = 1234
NODES = ("c1", "c2")


@pytest.fixture
def authority() -> Authority:
    return Authority({"slurm": service([], ["ctl.site"])}, login_hosts=["login1"])


def there(host: str, uid: int = ALICE) -> Caller:
    return Caller(uid, host, local=False)


@pytest.mark.parametrize("event", [Event.ENVIRONMENT, Event.TASK])
@pytest.mark.parametrize("host", ["c1", "c2.site", "login1", "ctl"])
def test_the_owner_acts_from_a_node_of_the_run_and_from_trusted_hosts(authority, event, host):
    assert authority.require(event, there(host), manager="slurm", owner=ALICE, nodes=NODES) is Right.OWNER


@pytest.mark.parametrize("event", [Event.ENVIRONMENT, Event.TASK])
def test_another_node_cannot_act_as_the_owner(authority, event):
    with pytest.raises(QtandemError) as caught:
        authority.require(event, there("c3"), manager="slurm", owner=ALICE, nodes=NODES)
    assert caught.value.code == "not-yours"
    assert "daemon.login_hosts" in caught.value.remedy


def test_root_of_another_node_reads_no_environment(authority):
    with pytest.raises(QtandemError):
        authority.require(Event.ENVIRONMENT, there("c3", 0), manager="slurm", owner=ALICE, nodes=NODES)


def test_nodes_that_are_not_known_let_no_relay_act(authority):
    with pytest.raises(QtandemError):
        authority.require(Event.ENVIRONMENT, there("c1"), manager="slurm", owner=ALICE, nodes=())


def test_on_the_daemons_host_the_kernel_is_believed_for_every_run(authority):
    caller = Caller(ALICE, "daemon")
    assert authority.require(Event.ENVIRONMENT, caller, manager="slurm", owner=ALICE, nodes=NODES) is Right.OWNER


def test_claims_have_no_place(authority):
    assert authority.require(Event.CLAIM, there("c3"), owner=ALICE) is Right.OWNER


@pytest.mark.parametrize("event", [Event.START, Event.END])
def test_a_node_that_is_no_control_host_reports_no_lifecycle_event(authority, event):
    with pytest.raises(QtandemError) as caught:
        authority.require(event, there("c1", 0), manager="slurm")
    assert caught.value.code == "not-authorised"


def test_a_login_host_is_no_control_host(authority):
    with pytest.raises(QtandemError):
        authority.require(Event.START, there("login1", 0), manager="slurm")
