"""From what the daemon knows to what the wire says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from qtandem.core.availability.estimate import waits_s
from qtandem.core.facts import Availability
from qtandem.core.leases.model import Claim, Lease, Task
from qtandem.core.managers import Shown
from qtandem.core.resources import Resource
from qtandem.core.verdicts import Situation
from qtandem.core.wire import ClaimAnswer, Health, LeaseAnswer, ResourceAnswer, TaskAnswer
from qtandem.daemons import steady
from qtandem.daemons.context import Context


def own_version() -> str:
    """The installed version; '0' in a checkout that is not installed."""
    try:
        return version("qtandem")
    except PackageNotFoundError:
        return "0"


VERSION = own_version()


def resource_answer(resource: Resource, situation: Situation) -> ResourceAnswer:
    fact = situation.facts.get(resource.name)
    room = situation.openness(resource)
    calibration = fact.calibration if fact else None
    qubits = resource.qubits or (calibration.qubits if calibration else None)
    return ResourceAnswer(
        name=resource.name,
        native=resource.native,
        type=resource.type,
        vendor=resource.vendor,
        availability=str(fact.seen_as(situation.now) if fact else Availability.UNKNOWN),
        reason=fact.reason if fact else "",
        open=room.open,
        why=room.reason,
        slots=resource.slots,
        free=room.free,
        queue=fact.queue if fact else None,
        wait_s=waits_s(fact, situation.now),
        age_s=round(fact.age_s(situation.now), 3) if fact else None,
        qubits=qubits,
        two_qubit_error=calibration.two_qubit_error if calibration else None,
        price=resource.price,
        currency=resource.currency,
        simulator=resource.simulator,
        sessions=not resource.sessionless,
        credentials=resource.credentials,
        owner=resource.owner,
        user_keys=list(resource.registered_keys()),
    )


def lease_answer(lease: Lease) -> LeaseAnswer:
    return LeaseAnswer(
        id=lease.id,
        owner=lease.owner,
        resource=lease.resource,
        slots=lease.slots,
        state=lease.state.value,
        uid=lease.uid,
        created_at=lease.created_at,
        changed_at=lease.changed_at,
        expires_at=lease.expires_at,
        reason=lease.reason,
    )


def claim_answer(claim: Claim) -> ClaimAnswer:
    return ClaimAnswer(
        id=claim.id,
        name=claim.name,
        uid=claim.uid,
        expires_at=claim.expires_at,
        leases=[lease_answer(lease) for lease in claim.leases],
    )


def task_answer(task: Task) -> TaskAnswer:
    return TaskAnswer(
        id=task.id,
        lease=task.lease,
        run=task.run,
        resource=task.resource,
        state=task.state.value,
        reason=task.reason,
        shots=task.shots,
        vendor_task=task.vendor_task,
        created_at=task.created_at,
        started_at=task.started_at,
        finished_at=task.finished_at,
        usage_s=task.usage_s,
    )


def health(context: Context) -> Health:
    """Healthy while every manager's sensors can be written (or there is no manager).

    A publisher that does not come to an end is as dead as one whose manager does not answer.

    A single sensor that fails (a licence that somebody removed) is a problem to show, not a reason to have the
    dead-man close all others.
    """
    publishers, now = context.publishers, context.clock()
    limit_s = context.settings.timing.deadman_s / 2
    stuck = {name for name, publisher in publishers.items() if publisher.health.stuck(now, limit_s)}
    dead = stuck | {name for name, publisher in publishers.items() if publisher.health.error}
    problems = [*context.problems, *context.secret_problems]
    problems += [*(f"{count} faults in {loop}" for loop, count in steady.faults.items())]
    return Health(
        healthy=not dead,
        silent=sorted(dead),
        sensors={name: dict(each.open_slots) for name, each in context.managers.items() if isinstance(each, Shown)},
        version=VERSION,
        at=now,
        publishers={
            name: "stuck" if name in stuck else publisher.health.word() for name, publisher in publishers.items()
        },
        workers=context.workers.running(),
        leases_open=len(context.leases.leases()),
        problems=problems,
    )
