"""A workload: what is wanted. The document is what the user wrote; the policy is what the core reads."""

import msgspec

from roost.model.keys import WorkloadKey
from roost.model.limits import DEFAULT_GRACE_MS, DEFAULT_PRIORITY, DEFAULT_RETENTION_MS, DEFAULT_RETRIES
from roost.model.reasons.attempts import Approved
from roost.model.reasons.reason import Reason
from roost.model.records.files import Input, InputFiles
from roost.model.states import (
    AffinityKind,
    Domain,
    InstanceState,
    Milestone,
    Move,
    Overlap,
    RestartWhen,
    RolloutState,
    WhenFull,
    WhenLost,
    WorkloadKind,
)


class AffinityRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """A rule about company: near, apart or avoid. A subject is PROJECT/NAME of a workload, or PROJECT?LABEL."""

    kind: AffinityKind
    selector: str
    by: Domain = Domain.NODE
    weight: int = 0  # 0: it must hold; else how much it is wished


class SpreadRule(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """Instances of one workload are to be even over places: at most this many more in one than in another."""

    by: Domain = Domain.ZONE
    skew_max: int = 1
    weight: int = 0  # 0: it must hold; else how much it is wished


class AffinityRules(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True
):
    selector: str  # the workload itself, as others may speak of it
    rules: tuple[AffinityRule, ...] = ()
    spread: tuple[SpreadRule, ...] = ()
    per_node: int = 0  # at most so many of the workload on a node; 0: any number


class Ask(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """What one instance needs of a node. Equal asks share one shortlist, so they must be hashable and small."""

    resources: tuple[tuple[str, int], ...] = ()  # sorted by name, no zeros
    driver: str = "process"
    pools: tuple[str, ...] = ()
    strategy: str = ""
    require: tuple[str, ...] = ()
    require_now: tuple[str, ...] = ()  # rules that speak of current use, so their answer changes with it
    prefer: tuple[tuple[str, int], ...] = ()
    tolerate: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    gpu_milli: int = 0  # of each device: 1,000 for whole ones, less for a share of one
    gpu_count: int = 0
    gpu_models: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()  # those that must be free on the node, and a 0 for each that may be any
    affinity: AffinityRules | None = None
    image: str = ""  # of its container: nodes that have it are preferred
    volumes: tuple[str, ...] = ()  # of the node, by name; those that it writes to with `:rw`
    vm: tuple[str, ...] = ()  # KIND/NAME: images, bridges and firmware of the node that a virtual machine needs
    isolation: str = ""  # of a process: the least that its node offers; empty: anything
    run_as: str = ""  # the user of a process, by name; empty: that of its project there
    limits: tuple[str, ...] = ()  # resources whose limits its node must enforce


class After(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    workload: str  # PROJECT/NAME
    when: Milestone | None = Milestone.SUCCEEDED  # None: as its kind says, until it is submitted
    each: bool = False  # element by element: the third waits for the third


class Schedule(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """When a job runs again and again. A workload with one never runs itself: each tick makes a run of its own."""

    cron: str
    zone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    catch_up: int = 1  # so many ticks that were missed are made up for, the latest ones
    history_limit: int = 10  # finished runs that are kept


class Update(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """How a service changes over to a new version, and how it leaves a node that is drained."""

    unavailable: int = 0  # so many may be away at once
    unavailable_percent: int = 25  # or this share of them, rounded up; the larger of the two counts
    surge: int = 0  # so many more may run at once
    surge_percent: int = 0
    canary: int = 0  # after so many it waits to be promoted
    healthy_after_ms: int = 1_000  # ready for so long: available
    deadline_ms: int = 300_000  # without an instance becoming available: failed
    failures: int = 3  # ends of new instances: failed
    rollback: bool = True  # what failed goes back by itself

    def unavailable_of(self, count: int) -> int:
        return max(self.unavailable, -(-count * self.unavailable_percent // 100))

    def surge_of(self, count: int) -> int:
        return max(self.surge, -(-count * self.surge_percent // 100))


class Restart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    when: RestartWhen = RestartWhen.ALWAYS
    pause_ms: int = 1_000  # before the first restart; it doubles while it keeps ending
    pause_max_ms: int = 60_000


DEFAULT_UPDATE = Update()
DEFAULT_RESTART = Restart()


class Policy(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """How a workload is treated over its life. Equal policies are shared: a hundred thousand jobs have a handful."""

    kind: WorkloadKind
    ask: Ask
    priority: int = DEFAULT_PRIORITY
    retries_max: int = DEFAULT_RETRIES
    retry_on: tuple[str, ...] = ("lost",)
    timeout_ms: int = 0
    queue_timeout_ms: int = 0
    deadline_ms: int = 0  # from submission
    when_full: WhenFull = WhenFull.QUEUE
    when_lost: WhenLost = WhenLost.RESCHEDULE
    fenced: bool = True
    grace_ms: int = DEFAULT_GRACE_MS
    retention_ms: int = DEFAULT_RETENTION_MS
    labels: tuple[str, ...] = ()  # by which others may speak of it: NAME and NAME=VALUE of each
    gang: str = ""  # who starts whole or not at all: of the workload's own name, or a name several workloads share
    gang_size: int = 0  # instances of the gang in all; 0: those of the workload
    ports: tuple[str, ...] = ()  # the names of the ask's ports
    deadline_at_ms: int = 0  # a moment, where the deadline is not a duration
    expected_ms: int = 0  # how long a run takes, as its user says
    preemptible: bool = True
    after: tuple[After, ...] = ()
    schedule: Schedule | None = None
    update: Update | None = None  # None: as it is by default
    restart: Restart | None = None
    inputs: tuple[Input, ...] = ()
    condition: str = ""  # CEL: whether it runs, decided when its dependencies are over; empty: it does
    approval_role: str = ""  # the role that has to approve it before it may start; empty: none
    until: str = ""  # the key of a workload: it is cancelled when that one has finished
    concurrency_group: str = ""  # PROJECT/GROUP, of which a newer workload cancels it; empty: none does
    move: Move = Move.COLD  # of what is no virtual machine: it is stopped, and starts again elsewhere

    @property
    def is_homebound(self) -> bool:
        """Its disks are on one node, and it starts on no other, also if that node is lost."""
        return self.kind == WorkloadKind.VM and self.move != Move.COLD and self.when_lost == WhenLost.PIN


class Rollout(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    state: RolloutState
    before: int  # the version that was good, to go back to; 0: there is none
    started_ms: int
    progress_ms: int  # when an instance last became available
    promoted: bool = False
    failures: int = 0  # of instances of the new version
    done: int = 0  # how many of the new version are available
    reason: Reason | None = None  # why it failed

    @property
    def is_going(self) -> bool:
        return self.state in (RolloutState.ROLLING, RolloutState.WAITING)


class Workload(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A workload as it is stored. Which of its instances wait is derived: all indexes that have no record yet."""

    project: str
    name: str
    policy: Policy
    document: bytes  # msgpack of the Document, defaults left out
    submitted_ms: int
    serial: int  # age: a smaller one came first
    count: int = 1
    # The state in which the instances that never ran ended; set: none of them will start.
    unstarted_end_state: InstanceState | None = None
    reason: Reason | None = None  # why
    finished_ms: int = 0
    version: int = 1
    changed_ms: int = 0  # when this version came; 0: when it was submitted
    change: Reason | None = None  # where this version comes from: applied, or rolled back; None: submitted
    rollout: Rollout | None = None  # None: nothing was ever updated
    pending_conditions: tuple[After, ...] = ()  # what it still waits for before any of it may start
    released_ms: int = 0  # since when it waits for nothing but room; 0: since it was submitted
    values: tuple[tuple[tuple[str, str], ...], ...] = ()  # variables of each element
    parent: str = ""  # the key of the scheduled workload that it is a run of
    tick_ms: int = 0  # of a schedule: the last tick that was dealt with; of a run: the tick it is for
    cancelling: Reason | None = None  # why all of its instances are being cancelled; None: they are not
    cancelled_below: int = 0  # while it is being cancelled: indexes below this one are done
    attempts_gone: int = 0  # of forgotten replicas: those that come after them count on, so no two logs have one name
    attempts_lost: int = 0  # attempts up to this one may have run in commits that were lost; their logs are not reused
    input_files: tuple[InputFiles, ...] = ()  # outputs of what it waited for; set by core/state/files.py alone
    approval: Approved | None = None  # None: it is not approved, or needs no approval
    adopted: bool = False  # learnt from agents: which instances never ran is not known, so none of them is fresh

    @property
    def key(self) -> WorkloadKey:
        return WorkloadKey(f"{self.project}/{self.name}")

    @property
    def instance_count(self) -> int:
        """Instances of its own. A schedule has none: `count` is that of each run."""
        return 0 if self.policy.schedule else self.count

    @property
    def is_gated(self) -> bool:
        """Whether more than its dependencies decides if it starts."""
        return bool(self.policy.condition or self.policy.approval_role)
