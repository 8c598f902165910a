"""Every call and answer of the daemon's API, version 1, as JSON; `wiretext` has the form that hooks speak."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION = 1
JSON, TEXT = "application/json", "text/plain"
UID_HEADER = "X-Qtandem-Uid"
MAX_BODY = 16 * 1024 * 1024

Text = Annotated[str, Field(max_length=4096)]
Uid = Annotated[int, Field(ge=0, lt=2**32)]
Name = Annotated[str, Field(max_length=256)]
Amount = Annotated[int, Field(ge=0, lt=2**48)]


class Call(BaseModel):
    """A request to the daemon; unknown keys are refused, since a typo must not change a verdict."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """An answer of the daemon; unknown keys come from a newer daemon and are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class SubmitCall(Call):
    """A job at submission. `request` is the `--qpu` text, `native` the manager's own resource text.

    `partition` and `nodes` are comma lists of what the job names itself. `job` is set when a pending job is
    modified. The rest is what the job asks of nodes, for the planner's look-up: `tasks` of `cpus_per_task` CPUs or
    `min_cpus`, whatever is more, on `min_nodes`; memory for each node or CPU; `gres` as the manager writes it;
    `excluded` nodes; `time_limit` in minutes.
    """

    manager: Name
    cluster: Name = ""
    uid: Uid
    user: Name = ""
    account: Name = ""
    partition: Text = ""
    nodes: Text = ""
    request: Text = ""
    native: Text = ""
    job: Name = ""
    qos: Name = ""
    reservation: Name = ""
    features: Text = ""
    excluded: Text = ""
    gres: Text = ""
    tasks: Amount = 0
    cpus_per_task: Amount = 0
    min_cpus: Amount = 0
    min_nodes: Amount = 0
    memory_node_mb: Amount = 0
    memory_cpu_mb: Amount = 0
    time_limit: Amount = 0
    exclusive: bool = False


class SubmitAnswer(Answer):
    """`none`: the job asks for no QPU. `native` holds the attributes to write into the job.

    `choices` is the request where other resources would do as well: a hook keeps it with the job, where no user
    can write, so that a pending job can be moved. So too `placed`, what the planner's look-up found and did.
    """

    verdict: Literal["admit", "reject", "none"]
    request: str = ""
    choices: str = ""
    placed: str = ""
    native: dict[str, str] = Field(default_factory=dict)
    code: str = ""
    message: str = ""


class StartCall(Call):
    """A job whose nodes are allocated; reported by root or the manager's service user."""

    manager: Name
    cluster: Name = ""
    job: Name
    index: int | None = None
    attempt: Annotated[int, Field(ge=0)] = 0
    uid: Uid
    user: Name = ""
    account: Name = ""
    partition: Name = ""
    nodes: Text = ""
    native: Text = ""
    can_requeue: bool = True
    time_limit_s: int | None = None


class StartAnswer(Answer):
    """`wait`: call again at once, the daemon waits for a slot that is being given back."""

    verdict: Literal["admit", "wait", "hold"]
    run: str = ""
    code: str = ""
    message: str = ""
    retry_after: float = 0.0


class EndCall(Call):
    """A job that ended, was requeued or cancelled. `attempt` None means every open run of the job."""

    manager: Name
    cluster: Name = ""
    job: Name
    index: int | None = None
    attempt: int | None = None
    exit_code: int | None = None


class EndAnswer(Answer):
    ended: int


class EnvironmentAnswer(Answer):
    """`secret` names the variables that are to stand in no log and no record of a manager."""

    run: str
    uid: int
    env: dict[str, str]
    secret: list[str] = []


class TaskCall(Call):
    """Execute `payload` on the caller's held lease on `resource` (or on the lease, or the claim, that is named).

    `key` makes the call idempotent: the same key of the same lease is the same task.
    """

    resource: Name = ""
    lease: Name = ""
    claim: Name = ""
    payload: dict[str, Any]
    key: Name = ""


class TaskAnswer(Answer):
    id: str
    lease: str
    run: str | None
    resource: str
    state: str
    reason: str = ""
    shots: int | None = None
    vendor_task: str | None = None
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    usage_s: float | None = None


class TextAnswer(Answer):
    """A vendor's own text: a result, a log, a target."""

    text: str


class ClaimCall(Call):
    request: Text
    ttl_s: Annotated[float, Field(gt=0)] | None = None
    name: Name = ""


class CredentialCall(Call):
    """A user's own key at a vendor, by the provider's names. It is kept sealed and is in no answer."""

    resource: Name
    values: dict[Name, Annotated[str, Field(max_length=8192)]] = Field(repr=False)


class CredentialAnswer(Answer):
    """`used` is False where the site has since said that its own key executes."""

    resource: str
    keys: list[str]
    added_at: float
    used: bool


class LeaseAnswer(Answer):
    id: str
    owner: str
    resource: str
    slots: int
    state: str
    uid: int
    created_at: float
    changed_at: float
    expires_at: float | None = None
    reason: str = ""


class ClaimAnswer(Answer):
    id: str
    name: str
    uid: int
    expires_at: float
    leases: list[LeaseAnswer]


class ResourceAnswer(Answer):
    """One resource with its newest fact. `free` counts slots that a job could lease now; `why` is a sentence.

    `owner` is whose key executes, `user_keys` what a user registers for that. Without `sessions` others' work can come
    between two tasks at the vendor.
    """

    name: str
    native: str
    type: str
    vendor: str = ""
    availability: str
    reason: str = ""
    open: bool
    why: str
    slots: int
    free: int
    queue: int | None = None
    wait_s: float | None = None
    age_s: float | None = None
    qubits: int | None = None
    two_qubit_error: float | None = None
    price: float | None = None
    currency: str = ""
    simulator: bool = False
    sessions: bool = True
    credentials: str = "brokered"
    owner: str = "site"
    user_keys: list[str] = Field(default_factory=list)


class DiscoveredAnswer(Answer):
    """A device that a vendor lists for a dynamic resource. `resource` is what became of it; empty: nothing, `why`."""

    template: str
    name: str
    type: str
    qubits: int | None = None
    simulator: bool | None = None
    max_shots: int | None = None
    queue: int | None = None
    status: str = ""
    resource: str = ""
    why: str = ""


class ExplainAnswer(Answer):
    """Why a job is where it is: the manager's word, and for each resource the true cause."""

    job: str
    state: str
    native_reason: str = ""
    run: str | None = None
    resources: list[ResourceAnswer] = Field(default_factory=list)
    lines: list[str] = Field(default_factory=list)


class PlanCall(Call):
    """Plan the cluster of a manager (the only one that can, if none is named); `apply` it as well.

    What is not given is as the configuration has it.
    """

    manager: Name = ""
    objective: Name = ""
    limit_s: Annotated[float, Field(gt=0, le=600)] | None = None
    apply: bool = False


class PlanTotals(Answer):
    """What would start: jobs, their weight, nodes put to use with their $ an hour and W."""

    jobs: int
    weight: int
    nodes: int
    cost_h: float
    watts: float


class PlanDecision(Answer):
    """One job of a plan: it starts on `nodes`, or waits, `why`.

    `pin`, `nice`, `release` are what to do for that; `did` is what was done of it, or why it was not.
    """

    job: str
    user: str
    nodes: list[str] = Field(default_factory=list)
    backend: str | None = None
    pin: bool = False
    nice: int | None = None
    release: bool = False
    why: str = ""
    did: str = ""


class PlanSkipped(Answer):
    job: str
    why: str


class PlanAnswer(Answer):
    """A plan of a cluster. `worth`: it is better than the manager's own order (`unplanned`)."""

    manager: str
    at: float
    objective: str
    engine: str
    seconds: float
    gap: float
    proven: bool
    worth: bool
    moved: int
    planned: PlanTotals
    unplanned: PlanTotals
    applied: bool = False
    decisions: list[PlanDecision] = Field(default_factory=list)
    skipped: list[PlanSkipped] = Field(default_factory=list)


class UsageRow(Answer):
    """Accounting of one run: its tasks, shots, QPU seconds as the vendor counts them, and cost."""

    run: str
    user: str
    account: str = ""
    resource: str
    slots: int
    started_at: float
    ended_at: float | None = None
    held_s: float
    tasks: int
    shots: int
    usage_s: float | None = None
    cost: float | None = None
    currency: str = ""


class Health(Answer):
    """`healthy` means that all managers' sensors are kept current.

    `silent` are the managers whose sensors are not: their dead-man closes them when that lasts. `sensors` are, for
    managers whose sensors are programs on their hosts, the open slots that those are to show, by native name.
    """

    healthy: bool
    version: str
    at: float
    publishers: dict[str, str] = Field(default_factory=dict)
    silent: list[str] = Field(default_factory=list)
    sensors: dict[str, dict[str, int]] = Field(default_factory=dict)
    workers: int = 0
    leases_open: int = 0
    problems: list[str] = Field(default_factory=list)


class ErrorBody(Answer):
    code: str
    message: str
    remedy: str = ""
    cause: str | None = None
    retryable: bool = False
    retry_after: float | None = None
