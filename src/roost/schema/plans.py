"""What submitting workloads would do."""

import msgspec

from roost.schema.why import NoteView


class PlacingView(msgspec.Struct, frozen=True):
    """Where an instance would go, and which devices and ports it would get."""

    instance: str
    node: str
    strategy: str
    devices: list[int]
    ports: list[int]


class PlanBlockerView(msgspec.Struct, frozen=True):
    """One reason to wait, and for how many nodes it holds; 0: it is not about nodes."""

    code: str
    message: str
    nodes: int


class PendingView(msgspec.Struct, frozen=True):
    """How many instances of a workload would wait (or be rejected), and why: a code as `why` has it."""

    workload: str
    count: int
    code: str
    message: str
    blockers: list[PlanBlockerView]


class StoppingView(msgspec.Struct, frozen=True):
    """An instance that would be stopped for them."""

    instance: str
    node: str
    message: str


class PlanView(msgspec.Struct, frozen=True):
    """What would happen. Submit the same documents with `token` as `plan`: exactly this is done, or nothing."""

    token: str
    revision: int
    changes: bool
    created: list[str]
    changed: list[str]
    unchanged: list[str]
    placed: list[PlacingView]
    pending: list[PendingView]
    stopped: list[StoppingView]
    next_boot: list[str] = []  # virtual machines that change when they are started or rebooted
    notes: list[NoteView] = []
