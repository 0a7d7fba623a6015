"""Nodes, drains and maintenance."""

import msgspec

from roost.model.records.node import ENFORCEABLE
from roost.model.states import IsolationLevel
from roost.schema.page import Page
from roost.schema.work import InstanceView, StoryLine


class ResourceUse(msgspec.Struct, frozen=True):
    """How much of a resource is given away, and how much there is."""

    used: int
    total: int


class UsageView(msgspec.Struct, frozen=True):
    """What a node measures of itself."""

    cpu_milli: int
    memory: int
    disk: int
    measured_ms: int  # when the server received it
    task_restarts: dict[str, int] = {}  # background tasks of the agent that failed and were restarted
    logs_stuck_ms: int = 0  # for how long the agent could not send logs that it has


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with an agent. Resources: cpu_milli, gpu_milli, memory and disk in bytes, others counted."""

    name: str
    status: str
    connected: bool
    draining: bool
    drain_until_ms: int | None = None
    cordoned: bool = False
    flaky_until_ms: int | None = None  # runs failed there that did not elsewhere: until then others are preferred
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
    user: str = ""  # that of its agent; without `users`, that of its runs
    users: bool = False  # each project has a user of its own there, and a run may have another
    isolation: IsolationLevel = IsolationLevel.NONE  # of processes
    enforces: list[str] = msgspec.field(
        default_factory=lambda: [*ENFORCEABLE]
    )  # `cleanup`: no process outlives its run
    vm: list[str] = []  # for virtual machines: image/NAME, bridge/NAME, firmware/uefi, accel/kvm, accel/tcg
    labels: dict[str, str]
    resources: dict[str, ResourceUse]
    usage: UsageView | None = None
    running: int


class NodeDetail(NodeView, frozen=True, kw_only=True):
    """A node with what runs there and its story. Of each GPU what is free, in thousandths; ports in use."""

    devices: list[int] = []
    ports: list[int] = []
    instances: list[InstanceView] = []
    story: list[StoryLine] = []


class NodePage(Page[NodeView, str], frozen=True):
    """Nodes by name. There are more as long as `next` is given, which goes into `after`."""


class Draining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long jobs may go on before they are moved, like `10m`; nothing: until they end, 0: they are moved at once."""

    deadline: int | float | str | None = None


class LeavingView(msgspec.Struct, frozen=True, kw_only=True):
    """Where one instance would go: a node, or none, with a code as `why` has it, and words. `may_finish`: it is a job
    and has until the deadline; only what still runs then has to go."""

    project: str
    name: str
    index: int
    node: str
    strategy: str
    code: str
    message: str
    may_finish: bool


class DrainPlanView(msgspec.Struct, frozen=True, kw_only=True):
    """What a drain would do. `whole`: everything that has to go at once has a place."""

    node: str
    revision: int
    whole: bool
    leaving: list[LeavingView]


class MaintenanceView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether everything is held where it is, since when and why. Without `until_ms`: until it is ended."""

    on: bool
    reason: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


class Maintaining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why, and for how long, like `2h`; nothing: until it is ended."""

    reason: str
    for_: int | float | str | None = msgspec.field(default=None, name="for")
