"""A run's environment, as QRMI's programs read it, and the run that an id means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.leases.model import Claim, Lease
from qtandem.core.leases.service import LeaseService
from qtandem.core.resources import Catalog, Resource
from qtandem.core.runs import JobId, Run, RunId

# IBM's quantum systems sign addresses for at most seven days.
LONGEST_S = 604_800
DELIMITER = ","


def find_run(leases: LeaseService, text: str) -> Run:
    """The open run of a run id, a job id, or a bare `JOBID[_INDEX]` that one manager has; raises `no-such-run`."""
    runs = leases.open_runs()
    try:
        if text.count(":") < 2:
            found = [run for run in runs if text in (_bare(run.id.job), f"{_bare(run.id.job)}.{run.id.attempt}")]
        elif "." in text.rpartition(":")[2]:
            wanted = RunId.parse(text)
            found = [run for run in runs if run.id == wanted]
        else:
            job = JobId.parse(text)
            found = [run for run in runs if run.id.job == job]
    except QtandemError:
        found = []
    if not found:
        remedy = "It has ended, has not begun, or has no QPU: qtandem explain JOB"
        raise QtandemError("no-such-run", f"There is no open run {text[:120]!r}", remedy=remedy)
    if len({run.id.job for run in found}) > 1:
        raise QtandemError("ambiguous", f"{text!r} is a job of several managers", remedy="Write MANAGER:CLUSTER:JOBID.")
    return max(found, key=lambda run: run.id.attempt)


def run_environment(
    catalog: Catalog,
    run: Run,
    leases: Sequence[Lease],
    socket: Path,
    own: Callable[[str], Mapping[str, str] | None],
    led: Callable[[Resource, Lease], Mapping[str, str]],
) -> tuple[dict[str, str], list[str]]:
    """The variables of a run with all its leases, and the names of those that are secret; raises `no-lease`.

    `own` gives the credential that the run's user has registered for a resource, where that one executes;
    `led` the variables that lead programs to the proxy, where there is one.
    The acquisition token is the lease's id. Keys of the vendor are there only where the admin said `direct`.
    """
    if not leases:
        raise QtandemError("no-lease", f"{run.id} does not hold its leases", retry_after=1.0)
    held = [(lease, catalog.get(lease.resource)) for lease in leases]
    env = _lists(held) | {
        "QRMI_JOB_ID": _bare(run.id.job),
        "QRMI_JOB_UID": str(run.uid),
        "QTANDEM_RUN": str(run.id),
        "QTANDEM_SOCKET": str(socket),
    }
    if run.id.job.manager == "slurm":
        env |= {f"SLURM_{name}": env[f"QRMI_{name}"] for name in ("JOB_QPU_RESOURCES", "JOB_QPU_TYPES")}
    seconds = min(run.time_limit_s or LONGEST_S, LONGEST_S)
    secret: dict[str, str] = {}
    for lease, resource in held:
        token, given = f"{resource.native}_QRMI_JOB_ACQUISITION_TOKEN", _token(resource, lease)
        (env if given == lease.id else secret)[token] = given
        env[f"{resource.native}_QRMI_JOB_TIMEOUT_SECONDS"] = str(seconds)
        secret |= _direct(resource, own(resource.name))
        secret |= {_variable(resource, key): value for key, value in led(resource, lease).items()}
    return env | secret, sorted(secret)


def claim_environment(catalog: Catalog, claim: Claim, socket: Path, now: float) -> dict[str, str]:
    """The variables of a job that executes on a claim. It executes through the daemon, whatever the admin said."""
    held = [(lease, catalog.get(lease.resource)) for lease in claim.leases]
    env = _lists(held) | {
        "QRMI_JOB_ID": claim.id,
        "QRMI_JOB_UID": str(claim.uid),
        "QTANDEM_CLAIM": claim.id,
        "QTANDEM_SOCKET": str(socket),
    }
    seconds = max(1, min(int(claim.expires_at - now), LONGEST_S))
    for lease, resource in held:
        env[f"{resource.native}_QRMI_JOB_ACQUISITION_TOKEN"] = lease.id
        env[f"{resource.native}_QRMI_JOB_TIMEOUT_SECONDS"] = str(seconds)
    return env


def _lists(held: Sequence[tuple[Lease, Resource]]) -> dict[str, str]:
    return {
        "QRMI_JOB_QPU_RESOURCES": DELIMITER.join(resource.native for _, resource in held),
        "QRMI_JOB_QPU_TYPES": DELIMITER.join(resource.type for _, resource in held),
        "QRMI_LIST_DELIMITER": DELIMITER,
    }


def _direct(resource: Resource, own: Mapping[str, str] | None) -> dict[str, str]:
    if resource.credentials != "direct":
        return {}
    return {_variable(resource, key): value for key, value in {**resource.settings, **(own or {})}.items()}


def _token(resource: Resource, lease: Lease) -> str:
    """In direct mode the program speaks to the vendor itself, so it needs the vendor's token."""
    return lease.token if resource.credentials == "direct" and lease.token else lease.id


def _variable(resource: Resource, key: str) -> str:
    """QRMI's form: `NAME_KEY`, but Pasqal's own keys have no prefix."""
    return key if key.startswith("PASQAL_") else f"{resource.native}_{key}"


def _bare(job: JobId) -> str:
    return job.job if job.index is None else f"{job.job}_{job.index}"
