"""A workload: what is wanted. The document is what the user wrote; the policy is what the core reads."""

import msgspec

from roost.model.limits import DEFAULT_GRACE_MS, DEFAULT_KEEP_MS, DEFAULT_PRIORITY, DEFAULT_RETRIES


class Ask(msgspec.Struct, frozen=True, array_like=True, gc=False, cache_hash=True):
    """What one instance needs of a node. Equal asks share one shortlist, so they must be hashable and small."""

    resources: tuple[tuple[str, int], ...] = ()  # sorted by name, no zeros
    driver: str = "process"
    pools: tuple[str, ...] = ()
    strategy: str = ""
    require: tuple[str, ...] = ()


class Policy(msgspec.Struct, frozen=True, array_like=True, gc=False, cache_hash=True):
    """How a workload is treated over its life. Equal policies are shared: a hundred thousand jobs have a handful."""

    kind: str
    ask: Ask
    priority: int = DEFAULT_PRIORITY
    retries_max: int = DEFAULT_RETRIES
    retry_on: tuple[str, ...] = ("lost",)
    timeout_ms: int = 0
    queue_timeout_ms: int = 0
    deadline_ms: int = 0  # from submission
    when_full: str = "queue"
    when_lost: str = "reschedule"
    exclusive: bool = True
    grace_ms: int = DEFAULT_GRACE_MS
    keep_ms: int = DEFAULT_KEEP_MS


class Workload(msgspec.Struct, omit_defaults=True, gc=False):
    """A workload as it is stored. Which of its instances wait is derived: all indexes that have no record yet."""

    project: str
    name: str
    policy: Policy
    document: bytes  # msgpack of the Document, defaults left out
    submitted_ms: int
    serial: int  # age: a smaller one came first
    count: int = 1
    rest: str = ""  # the state in which the instances that never ran ended; set: nothing of it starts any more
    cause: str = ""  # why
    finished_ms: int = 0
    adopted: bool = False  # learnt from agents: which instances never ran is not known, so none of them is fresh

    @property
    def key(self) -> str:
        """PROJECT/NAME"""
        return f"{self.project}/{self.name}"
