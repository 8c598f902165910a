"""The models of `qtandem.toml`. The commented example and the reference come from the descriptions here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from qtandem.core.discovery import parsed
from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.requests import seconds
from qtandem.core.resources import NATIVE, Effect
from qtandem.core.sources import ObserveSource, Source

Positive = Annotated[float, Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DaemonSettings(_Section):
    """The daemon `qtandemd`. Without root, unset paths move to the XDG directories."""

    socket: Path = Field(Path("/run/qtandem/qtandem.sock"), description="where hooks, jobs and tools reach the daemon")
    runtime_dir: Path = Field(Path("/run/qtandem"), description="names, heartbeat and the runs' environment files")
    state_dir: Path = Field(Path("/var/lib/qtandem"), description="database, results, install manifests")
    database: str = Field("", description="SQLAlchemy URL; empty: SQLite in state_dir")
    master_key: Path = Field(Path("/etc/qtandem/master.key"), description="key that encrypts tokens at rest")
    launcher: str = Field(
        "",
        description="socket of qtandem-launcher, which starts workers and managers' commands under users of their "
        "own, usually /run/qtandem-launcher/launcher.sock; empty: all runs as the daemon's user",
    )
    launcher_config: Path = Field(
        Path("/etc/qtandem/launcher.toml"), description="root's file for it; `qtandem install` writes it"
    )
    qrmi_config: Path = Field(Path("/etc/qtandem/qrmi_config.json"), description="QRMI's file; read if it is there")
    tls_dir: Path = Field(Path("/etc/qtandem/tls"), description="certificates of daemon and relay")
    listen: str = Field("", description="HOST:PORT for relays (mutual TLS); empty: no relays; usual port 7447")
    proxy: str = Field(
        "",
        description="127.0.0.1:PORT where programs that speak a vendor's own protocol execute without its key, on "
        "this host and by each relay that has the same line; empty: none; usual port 748",
    )
    metrics: str = Field("127.0.0.1:9447", description="HOST:PORT of /metrics and the status page; empty: none")
    textfile: str = Field("", description="file for a node exporter's textfile collector; empty: none")
    keep_days: Annotated[float, Field(ge=0)] = Field(
        400.0, description="runs, claims and tasks that are over are forgotten after so many days; 0: never"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    admins: tuple[str, ...] = Field((), description="users who may see everybody's runs, besides root")
    login_hosts: tuple[str, ...] = Field(
        (), description="relays that may speak for the owner of any run; all others only of runs on their own node"
    )


class RelaySettings(_Section):
    """The relay of a host that is not the daemon's."""

    server: str = Field("", description="HOST:PORT of the daemon; empty: this host has no relay")
    connect_timeout_s: Positive = Field(2.0, description="how long a connection to the daemon may take")
    mirror: bool = Field(
        True, description="keep names and heartbeat here; only submit hooks and the dead-man need them"
    )
    per_uid: Annotated[int, Field(gt=0)] = Field(256, description="most connections of one user, root excepted")


class Timing(_Section):
    """Seconds, unless the name says otherwise."""

    poll_simulator_s: Positive = Field(1.0, description="poll period of a simulator")
    poll_cloud_s: Positive = Field(60.0, description="poll period of a vendor")
    poll_waiting_s: Positive = Field(15.0, description="poll period of a vendor while jobs wait for the resource")
    backoff_max_s: Positive = Field(300.0, description="longest poll period after errors")
    fact_ttl_periods: Positive = Field(3.0, description="a fact is stale after so many poll periods")
    reassert_s: Positive = Field(60.0, description="sensors are written again so often, changed or not")
    heartbeat_s: Positive = Field(5.0, description="heartbeat period")
    deadman_s: Positive = Field(30.0, description="sensors close after so long without a heartbeat")
    releasing_wait_s: Positive = Field(30.0, description="how long a starting job waits for a slot being given back")
    no_requeue_wait_s: Positive = Field(300.0, description="the same for a job that cannot be requeued")
    refusals: Annotated[int, Field(gt=0)] = Field(5, description="refused starts after which a job is held")
    refusal_backoff_s: Positive = Field(15.0, description="first back-off of a refused start; doubles each time")
    refusal_backoff_max_s: Positive = Field(600.0, description="longest back-off of a refused start")
    reserve_ttl_s: Positive = Field(120.0, description="a lease that is not acquired by then expires")
    claim_ttl_s: Positive = Field(28800.0, description="life of a claim if its maker gives none")
    vendor_call_s: Positive = Field(30.0, description="deadline of one call to a vendor")
    workers: Annotated[int, Field(gt=0)] = Field(16, description="most worker processes")
    worker_memory_mb: Annotated[int, Field(gt=0)] = Field(8192, description="address space of one worker")
    discover_s: Positive = Field(3600.0, description="how often dynamic resources are looked up at the vendor")
    secrets_s: Positive = Field(10.0, description="how often secrets are looked at for a change")
    reap_s: Positive = Field(30.0, description="how often leases are compared with the manager's jobs")
    submit_ms: Positive = Field(40.0, description="deadline of the submit hook, in milliseconds")


class PlannerSettings(_Section):
    """The planner, for a manager on which plans can be seen through (Slurm). It needs the extra `planner`.

    Plans on demand (`qtandem plan`) need no setting.
    """

    enabled: bool = Field(False, description="look up the best node for each job with a QPU that is submitted")
    at_submit: Literal["advise", "exclude", "pin"] = Field(
        "advise",
        description="what to do with it. advise: only note it with the job; exclude: keep the job off nodes that cost "
        "more than the best; pin: have it on the best",
    )
    objective: Literal["performance", "green", "regulated", "balanced"] = Field(
        "balanced", description="what is saved; docs/planner.md has the table"
    )
    refresh_s: Positive = Field(15.0, description="how often the cluster is read for look-ups")
    lookup_ms: Positive = Field(10.0, description="longest that a submission waits for its look-up, in milliseconds")
    pin_s: Positive = Field(600.0, description="a pin or exclusion of ours is taken back if the job has not started")
    limit_s: Positive = Field(10.0, description="time for one plan")
    workers: Annotated[int, Field(gt=0)] = Field(1, description="threads of the solvers")
    moves: Annotated[int, Field(ge=0)] = Field(8, description="most pins that one plan changes or takes back")
    changes: Annotated[int, Field(ge=0)] = Field(64, description="most jobs that one plan pins, orders or releases")
    horizon_s: Annotated[float, Field(ge=0)] = Field(0.0, description="a plan is made so often by itself; 0: never")
    horizon_apply: bool = Field(False, description="apply these plans; else they are only kept for look-ups and shown")
    cost_core_h: Annotated[float, Field(ge=0)] = Field(0.034, description="price of a core of a node in use, an hour")
    cost_gpu_h: Annotated[float, Field(ge=0)] = Field(1.40, description="price of a GPU of a node in use, an hour")
    watts_node: Annotated[float, Field(ge=0)] = Field(
        294.0, description="power of a node in use, where none is measured"
    )
    watts_core: Annotated[float, Field(ge=0)] = Field(10.7, description="and for each core")
    watts_gpu: Annotated[float, Field(ge=0)] = Field(250.0, description="and for each GPU")


class Reachable(_Section):
    """From where a resource can be used; left out: from everywhere."""

    partitions: tuple[str, ...] = Field((), description="partitions or queues")
    nodes: str = Field("", description="node set, for example c[1-4]")


class Allow(_Section):
    """Who may use a resource; left out: everybody."""

    users: tuple[str, ...] = Field((), description="user names")
    accounts: tuple[str, ...] = Field((), description="accounts or projects of the manager")


class ResourceSettings(_Section):
    """What QRMI's file has no place for; with `type`, a resource of its own."""

    type: str = Field("", description="provider type, for a resource that qrmi_config.json does not name")
    dynamic: bool = Field(
        False, description="not one device: all that the vendor shows to this credential and the filter takes; IBM only"
    )
    filter: str = Field(
        "",
        description="which devices of a dynamic resource, as after `any:` or as QRMI's; without simulators unless "
        "it names them",
    )
    settings: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="the provider's own keys; never a secret"
    )
    secrets: dict[str, Source] = Field(default_factory=dict, description="")
    observe_secrets: dict[str, ObserveSource] = Field(default_factory=dict, description="")
    native: str = Field("", description="name towards shells and managers, if the resource's own will not do")
    slots: Annotated[int, Field(gt=0, le=10_000)] = Field(1, description="tasks that can be under way at once")
    reachable_from: Reachable = Field(Reachable(), description="from where it can be used")
    allow: Allow = Field(Allow(), description="who may use it")
    credentials: Literal["brokered", "direct"] = Field(
        "brokered", description="direct: jobs get the vendor's keys in QRMI's variables"
    )
    owner: Literal["site", "user", "either"] = Field(
        "site",
        description="whose key runs execute with: the site's; the user's own, registered by `qtandem credentials add`; "
        "either: the user's where there is one, else the site's",
    )
    user_keys: tuple[str, ...] = Field(
        (), description="the secret keys that a user registers, all of them; left out: those usual for the type"
    )
    max_queue: Annotated[int, Field(ge=0)] | None = Field(None, description="closed while more queue at the vendor")
    max_wait: str | None = Field(None, description="closed while the vendor's wait is longer, for example 40m")
    max_tasks: Annotated[int, Field(gt=0)] | None = Field(
        None, description="tasks at the vendor at once, of all leases together; left out: as many as leases have slots"
    )
    max_tasks_lease: Annotated[int, Field(gt=0)] | None = Field(
        None, description="tasks of one lease that have not ended; more are refused until one has"
    )
    task_order: Literal["fair", "priority", "arrival"] = Field(
        "fair", description="which lease's task is next where max_tasks is reached"
    )
    priority: dict[str, int] = Field(
        default_factory=dict, description="for task_order priority: number of a user or account, higher first, else 0"
    )
    price: Annotated[float, Field(ge=0)] | None = Field(None, description="price of a task")
    currency: str = Field("", description="currency of the price")
    vendor: str = Field("", description="what vendor= in a request matches")
    qubits: Annotated[int, Field(gt=0)] | None = Field(None, description="qubits; left out: what calibration says")
    max_shots: Annotated[int, Field(gt=0)] | None = Field(None, description="shots of one task")
    poll_s: Positive | None = Field(None, description="poll period; left out: that of its kind in [timing]")
    effects: dict[Availability, Effect] = Field(
        default_factory=dict, description="open or closed for paused, offline, forbidden, unknown; closed by default"
    )

    @field_validator("native")
    @classmethod
    def _native(cls, value: str) -> str:
        if value and not NATIVE.fullmatch(value):
            raise ValueError(f"{value!r} does not match {NATIVE.pattern}")
        return value

    @field_validator("filter")
    @classmethod
    def _filter(cls, value: str) -> str:
        try:
            parsed(value)
        except QtandemError as error:
            raise ValueError(error.message) from None
        return value

    @field_validator("max_wait")
    @classmethod
    def _wait(cls, value: str | None) -> str | None:
        if value is not None:
            seconds(value)
        return value


class ManagerSettings(_Section):
    """One workload manager."""

    cluster: str = Field("", description="the cluster's name in that manager")
    service_users: tuple[str, ...] = Field((), description="users besides root that report for the manager")
    control_hosts: tuple[str, ...] = Field((), description="hosts of the manager's servers; empty: the daemon's own")
    server: str = Field("qtandem", description="Slurm: the server name of the licences")
    bin_dir: str = Field("", description="where the manager's commands are; empty: PATH")
    options: dict[str, str] = Field(default_factory=dict, description="what this manager alone needs")


class Settings(_Section):
    """The whole file."""

    version: Literal[1] = Field(1, description="version of this file's form")
    daemon: DaemonSettings = Field(DaemonSettings(), description="")
    relay: RelaySettings = Field(RelaySettings(), description="")
    timing: Timing = Field(Timing(), description="")
    planner: PlannerSettings = Field(PlannerSettings(), description="")
    resources: dict[str, ResourceSettings] = Field(default_factory=dict, description="")
    classes: dict[str, str] = Field(default_factory=dict, description="a site's own words for requests")
    managers: dict[str, ManagerSettings] = Field(default_factory=dict, description="")
