"""What the server answers with: the same names as in its views. Fields that a newer server adds are ignored.

Times are milliseconds since 1970. Resources: cpu_milli, gpu_milli, memory and disk in bytes, others counted.
"""

from typing import Any

import msgspec

from roost.client.setting_types import Maintenance
from roost.client.version_types import Rollout
from roost.model.states import FINISHED


class Line(msgspec.Struct, frozen=True):
    """One line of a story: when, to which state, why, and in which commit."""

    at_ms: int
    state: str
    cause: str
    revision: int


class Candidate(msgspec.Struct, frozen=True):
    """A node that was eligible, and its score from 0 to 1: higher is better."""

    node: str
    score: float


class Decision(msgspec.Struct, frozen=True):
    """Why an instance went where it went. The first candidate was taken."""

    strategy: str
    eligible: int
    considered: int
    candidates: list[Candidate]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a workload. Story and decision are there when one instance was asked for."""

    project: str
    name: str
    index: int
    state: str
    attempt: int = 0
    node: str = ""
    cause: str = ""
    since_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    ready_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    step: int = 0
    losses: int = 0
    failures: int = 0
    version: int = 1
    ready: bool = False
    sick: str = ""
    crash_loop: bool = False
    devices: list[int] = []
    ports: dict[str, int] = {}
    decision: Decision | None = None
    story: list[Line] = []

    @property
    def is_over(self) -> bool:
        """Whether it ended and does not come back by itself."""
        return self.state in FINISHED


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted, and how far it has come. Document, needs and instances are there when one was asked for."""

    project: str
    name: str
    kind: str
    state: str
    count: int
    counts: dict[str, int]
    priority: int
    cause: str = ""
    submitted_ms: int
    finished_ms: int | None = None
    labels: dict[str, str] = {}
    version: int = 1
    changed_ms: int | None = None
    change: str = ""
    rollout: Rollout | None = None
    ready: int | None = None
    looping: int | None = None
    result: str = ""  # of a submission: created, changed or unchanged
    document: dict[str, Any] = {}
    needs: dict[str, int] = {}
    instances: list[Instance] = []

    @property
    def key(self) -> str:
        """PROJECT/NAME"""
        return f"{self.project}/{self.name}"

    @property
    def is_over(self) -> bool:
        """Whether nothing of it lives or will start again by itself."""
        return self.finished_ms is not None


class Room(msgspec.Struct, frozen=True):
    """How much of a resource is given away, and how much there is."""

    used: int
    total: int


class Usage(msgspec.Struct, frozen=True):
    """What a node measures of itself."""

    cpu_milli: int
    memory: int
    disk: int


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with an agent. Instances and story are there when one node was asked for."""

    name: str
    status: str
    connected: bool
    draining: bool
    drain_until_ms: int | None = None
    cordoned: bool = False
    flaky_until_ms: int | None = None
    lease_until_ms: int
    joined_ms: int
    pool: str
    zone: str
    rack: str
    region: str
    arch: str
    drivers: list[str]
    gpu_model: str = ""
    taints: list[str] = []
    labels: dict[str, str]
    resources: dict[str, Room]
    usage: Usage | None = None
    running: int
    devices: list[int] = []
    ports: list[int] = []
    instances: list[Instance] = []
    story: list[Line] = []


class Blocker(msgspec.Struct, frozen=True):
    """A reason with its code, and how many nodes it keeps out; 0: it is not about nodes."""

    filter: str
    reason: str
    nodes: int
    code: str = ""


class Suggestion(msgspec.Struct, frozen=True):
    """A change that would place an instance now, as the scheduler itself found on a copy of the state."""

    kind: str
    words: str
    node: str
    path: str = ""
    amounts: dict[str, int] = {}
    instances: list[str] = []
    facts: dict[str, str] = {}


class Need(msgspec.Struct, frozen=True):
    """One of the needs that no node meets together."""

    path: str
    words: str
    nodes: int


class Estimate(msgspec.Struct, frozen=True):
    """When an instance may start, or in words why nobody can tell."""

    words: str
    earliest_ms: int | None = None
    likely_ms: int | None = None
    latest_ms: int | None = None


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why an instance is where it is, or why it waits: as data, and in words."""

    instance: str
    state: str
    words: str
    code: str = ""
    blockers: list[Blocker] = []
    node: str = ""
    strategy: str = ""
    eligible: int = 0
    considered: int = 0
    candidates: list[Candidate] = []
    verdict: str = ""
    suggestions: list[Suggestion] = []
    contradiction: list[Need] = []
    position: int | None = None
    ahead: list[str] = []
    estimate: Estimate | None = None


class Placing(msgspec.Struct, frozen=True):
    """Where an instance would go, and which devices and ports it would get."""

    instance: str
    node: str
    strategy: str
    devices: list[int] = []
    ports: list[int] = []


class Reason(msgspec.Struct, frozen=True):
    """One reason to wait."""

    code: str
    words: str
    nodes: int


class Pending(msgspec.Struct, frozen=True):
    """How many instances of a workload would wait, and why."""

    workload: str
    count: int
    code: str
    words: str = ""
    blockers: list[Reason] = []


class Stopping(msgspec.Struct, frozen=True):
    """An instance that would be stopped."""

    instance: str
    node: str
    words: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What submitting workloads would do. `token` makes a submission of the same documents do exactly that."""

    token: str
    revision: int
    changes: bool
    created: list[str] = []
    changed: list[str] = []
    unchanged: list[str] = []
    placed: list[Placing] = []
    pending: list[Pending] = []
    stopped: list[Stopping] = []


class Change(msgspec.Struct, frozen=True):
    """An object as it is after a commit, None when it is gone. `key`: PROJECT/NAME, PROJECT/NAME.INDEX or a node's."""

    revision: int
    kind: str
    key: str
    what: str
    object: dict[str, Any] | None


class Reset(msgspec.Struct, frozen=True):
    """What happened since the revision asked for is not known any more: list again, and go on from this one."""

    revision: int
    message: str = ""


NEWS: dict[str, type[Any]] = {"change": Change, "reset": Reset}


class Attempt(msgspec.Struct, frozen=True):
    """A log that is followed goes on with another attempt."""

    attempt: int
    node: str = ""
    cause: str = ""


class Ending(msgspec.Struct, frozen=True):
    """A log that was followed is over, and how its instance ended."""

    state: str
    attempt: int = 0
    cause: str = ""
    exit_code: int | None = None
    signal: int | None = None


class HistoryStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How the history stands: the newest commit in it, changes that wait to be written, and why none are if so."""

    revision: int
    at_ms: int
    waiting: int = 0
    bytes: int = 0
    gaps: int = 0
    failed: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the server stands. The counts of a large state may be some moments old."""

    version: str
    revision: int
    ready: bool
    now_ms: int
    strategy: str
    strategies: list[str] = []
    lease_ms: int
    patience_ms: int = 30_000
    preempt_margin: int = 20
    agents_connected: int
    nodes: dict[str, int]
    workloads: dict[str, int]
    instances: dict[str, int]
    maintenance: Maintenance = Maintenance(on=False)
    history: HistoryStanding | None = None
    controllers: list[str] = []


class Accepted(msgspec.Struct, frozen=True):
    """What became of the documents of a batch, in their order."""

    items: list[Workload]


class WorkloadPage(msgspec.Struct, frozen=True):
    """Workloads as of a revision; `next` goes into `after` of the next page."""

    revision: int
    items: list[Workload]
    next: str | None = None


class InstancePage(msgspec.Struct, frozen=True):
    """Instances as of a revision."""

    revision: int
    items: list[Instance]
    next: int | None = None


class NodePage(msgspec.Struct, frozen=True):
    """Nodes as of a revision."""

    revision: int
    items: list[Node]
    next: str | None = None


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """A join token, without its secret. `uses` are those that are left; None: any number."""

    id: str
    pool: str
    uses: int | None
    created_ms: int
    expires_ms: int


class NewJoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """A join token that was just made: the only time that it is told."""

    token: str
    about: JoinToken


class JoinTokenPage(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    items: list[JoinToken]
