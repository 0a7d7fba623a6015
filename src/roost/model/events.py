"""Everything that can happen to the core. Plain data, so that a batch can be journalled and replayed."""

import msgspec

from roost.model.audit import By
from roost.model.frames import Hello, Report, Usage
from roost.model.kept import Kept
from roost.model.plan import Plan
from roost.model.project import Pool, Project, Reservation
from roost.model.workload import Policy


class Wanted(msgspec.Struct, frozen=True):
    """One workload that is wanted. The document was checked at the edge."""

    project: str
    name: str
    count: int
    policy: Policy
    document: bytes
    values: tuple[tuple[tuple[str, str], ...], ...] = ()  # variables of each element of an array


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants workloads: all of them are taken in, or none."""

    request: int
    wanted: tuple[Wanted, ...]
    same_ok: bool = False  # apply: the same document again changes nothing, another one makes a new version
    expected: Plan | None = None  # do exactly this, or nothing
    must_exist: bool = False  # only change what lives: an unknown or finished name is not_found, nothing is made


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop a workload, or one instance of it."""

    request: int
    workload: str
    index: int | None = None
    cause: str = "asked for"


class Retry(msgspec.Struct, frozen=True, tag=True):
    """Run again what ended otherwise than well: a workload's instances, or one of them."""

    request: int
    workload: str
    index: int | None = None
    failed: bool = False  # only what failed or ran out of time, not what was cancelled or expired


class Posted(msgspec.Struct, frozen=True, tag=True):
    """Somebody else knows how an attempt ended."""

    request: int
    workload: str
    index: int
    token: int  # of the attempt
    code: int
    cause: str = ""


class RunNow(msgspec.Struct, frozen=True, tag=True):
    """A schedule is to run once more, besides its ticks."""

    request: int
    workload: str


class Promote(msgspec.Struct, frozen=True, tag=True):
    """The canaries of an update are good: all others follow."""

    request: int
    workload: str


class Rollback(msgspec.Struct, frozen=True, tag=True):
    """Back to an earlier version, as a new one."""

    request: int
    workload: str
    version: int = 0  # 0: the one before


class Cordon(msgspec.Struct, frozen=True, tag=True):
    """Nothing new comes to a node; what runs there stays. Resume ends it."""

    request: int
    node: str


class Maintain(msgspec.Struct, frozen=True, tag=True):
    """Maintenance: nothing is placed, moved, updated or given up until it ends."""

    request: int
    on: bool
    reason: str = ""
    for_ms: int = 0  # 0: until it is ended


class MarkPool(msgspec.Struct, frozen=True, tag=True):
    """A pool has failed, is to be emptied, or is well again."""

    request: int
    pool: str
    status: str  # ready | draining | failed
    reason: str = ""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Take a node out of service; what still runs at the deadline is moved."""

    request: int
    node: str
    deadline_ms: int = 0  # a duration; 0: at once


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Put a drained or draining node back into service."""

    request: int
    node: str


class Remove(msgspec.Struct, frozen=True, tag=True):
    """Forget a node that is lost or drained."""

    request: int
    node: str


class SetProject(msgspec.Struct, frozen=True, tag=True):
    """A project gets a weight and a quota."""

    request: int
    project: Project


class SetPool(msgspec.Struct, frozen=True, tag=True):
    """A pool gets a strategy of its own, or is promised more than once."""

    request: int
    pool: Pool


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """Set nodes aside for a project; without names, `count` nodes of a pool are chosen."""

    request: int
    reservation: Reservation
    count: int = 0
    pool: str = ""


class Unset(msgspec.Struct, frozen=True, tag=True):
    """Forget a project's, pool's or reservation's settings."""

    request: int
    kind: str  # project | pool | reservation
    name: str


class Keep(msgspec.Struct, frozen=True, tag=True):
    """Store or forget records that the core only keeps: all of them, or none."""

    request: int
    records: tuple[Kept, ...]


Request = (
    Submit | Cancel | Retry | Posted | RunNow | Promote | Rollback | Drain | Cordon | Resume | Remove
    | Maintain | SetProject | SetPool | MarkPool | Reserve | Unset | Keep
)  # fmt: skip


class Asked(msgspec.Struct, frozen=True, tag=True):
    """A request, and who asks: once it was carried out, that is noted."""

    by: By
    event: Request


class Joined(msgspec.Struct, frozen=True, tag=True):
    """An agent said hello."""

    request: int
    hello: Hello


class Reported(msgspec.Struct, frozen=True, tag=True):
    """An agent reports on its attempts, or lacks a delta."""

    node: str
    session: int
    sequence: int
    reports: tuple[Report, ...] = ()
    lacking: bool = False


class Parted(msgspec.Struct, frozen=True, tag=True):
    """An agent's stream broke; `leaving`: its node is going out of service, and is gone once nothing runs there."""

    node: str
    session: int
    leaving: bool = False


class Heard(msgspec.Struct, frozen=True, tag=True):
    """Signs of life since the last batch: (node, session, when)."""

    beats: tuple[tuple[str, int, int], ...]
    usage: tuple[tuple[str, Usage], ...] = ()


Event = Request | Asked | Joined | Reported | Parted | Heard


def inner(event: Event) -> Event:
    """What happened, whoever asked for it."""
    return event.event if isinstance(event, Asked) else event
