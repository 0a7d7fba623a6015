"""How workloads, their instances and templates look over the API. Times are milliseconds since 1970."""

from typing import Annotated, Any, Literal

import msgspec

from roost.model.limits import DURATION_MS_MAX, EXIT_CODE_MAX, TEXT_LENGTH_MAX
from roost.model.records.template import Parameter
from roost.model.states import FINISHED, InstanceState, Power, PowerAction, WorkloadState
from roost.schema.page import Page
from roost.schema.reason_text import ReasonView
from roost.schema.rollouts import RolloutView
from roost.schema.schedules import ScheduleView

TOKEN_MAX = (1 << 53) - 1  # exact in JSON, and more than a cluster gives away


class RunUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt used, as its node measured it. What is not there could not be measured."""

    wall_ms: int  # from the start of its process to its end
    cpu_ms: int | None = None
    memory_max: int | None = None  # bytes at the same time, at most
    memory_is_bound: bool = False  # so much or less: the count of a process begins with the size of its parent
    io_read: int | None = None  # bytes from disks
    io_written: int | None = None
    unmeasured: list[str] = []  # of cpu, memory and io: what its node cannot measure


class StoryLine(msgspec.Struct, frozen=True):
    """One line of a story."""

    at_ms: int
    state: str
    message: str
    revision: int
    reason: ReasonView | None = None
    before: str = ""
    attempt: int = 0
    node: str = ""
    exit_code: int | None = None
    signal: int | None = None
    step: int = 0
    usage: RunUsageView | None = None  # of an attempt that has ended


class CandidateView(msgspec.Struct, frozen=True):
    """A node that was eligible, and its score from 0 to 1: higher is better."""

    node: str
    score: float
    has_image: bool = False  # of its container, when the decision was made


class DecisionView(msgspec.Struct, frozen=True):
    """Why an instance went where it went. The first candidate was taken."""

    strategy: str
    eligible: int
    considered: int
    candidates: list[CandidateView]


class ResultView(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt, or why what it wrote was not kept."""

    size: int  # bytes of JSON; 0: it was not kept
    data: Any = msgspec.UNSET  # the JSON itself, up to 1,024 bytes; larger ones are read one by one
    message: str = ""  # why it was not kept
    reason: ReasonView | None = None  # the message as data


class InstanceResult(ResultView, frozen=True, kw_only=True):
    """The result of the last attempt of an instance, whatever its size."""

    index: int
    state: str
    attempt: int


class ResultPage(Page[InstanceResult, int], frozen=True):
    """Results by index, without instances that wrote none. A page may be short, as of instances."""


class GapView(msgspec.Struct, frozen=True):
    """An output that was to be kept and was not."""

    path: str  # the pattern, or the path of a file; empty: all outputs
    problem: str
    required: bool
    message: str


class OutputsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The files that an attempt left: how many, and what is missing."""

    digest: str = ""  # of their manifest; empty: there are none
    files: int = 0
    size: int = 0  # bytes of all of them together
    gaps: list[GapView] = []  # the first ten
    gaps_count: int = 0


class PowerView(msgspec.Struct, frozen=True, kw_only=True):
    """The power of a virtual machine: what is wanted, what its node reports, and the last command.

    `pending`: its node has not carried out the command yet. `by` and `action` are of the last command; empty: none was
    given to this attempt, or the machine has changed by itself since.
    """

    state: Power  # as reported; before a report: as it begins
    wanted: Power
    pending: bool = False
    action: PowerAction | None = None
    by: str = ""
    asked_ms: int | None = None
    since_ms: int | None = None  # since when `state` is what it is
    problem: str = ""  # why the last command could not be carried out
    serial: int = 0  # of the last command; commands given later have larger ones


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a workload."""

    project: str
    name: str
    index: int
    state: str
    attempt: int = 0
    node: str = ""
    message: str = ""
    reason: ReasonView | None = None  # the message as data
    since_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    not_before_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    step: int = 0
    losses: int = 0
    failures: int = 0
    version: int = 1  # of its workload: which it runs, or is to run
    ready: bool = False  # of a service: it is to be used, as its health check says, or because it runs and has none
    health_message: str = ""  # the last result of its health check, if it failed
    crash_loop: bool = False  # it keeps ending, and is not ready
    result: ResultView | None = None  # of this attempt, as JSON; nothing: it wrote none
    outputs: OutputsSummary | None = None  # of this attempt; nothing: none were collected
    image: str = ""  # of a container: the digest of what this attempt runs
    power: PowerView | None = None  # of a virtual machine that runs
    usage: RunUsageView | None = None  # of this attempt; nothing: it has not ended, or its end was not reported
    pulling: int | None = None  # percent of its image that its node has fetched; nothing: it fetches none

    @property
    def is_over(self) -> bool:
        """Whether it ended and does not come back by itself."""
        return self.state in FINISHED

    @property
    def ran_until_ms(self) -> int | None:
        """The end of its last attempt; None: it runs. A queued instance runs no longer."""
        return self.since_ms if self.state == InstanceState.QUEUED else self.finished_ms


class NotPassedView(msgspec.Struct, frozen=True):
    """The result of a dependency that a run does not get in its environment, and why."""

    variable: str
    workload: str
    code: str
    message: str


class InstanceDetail(InstanceView, frozen=True, kw_only=True):
    """One run of a workload with its story and the decision that placed it."""

    token: int = 0
    devices: list[int] = []
    ports: dict[str, int] = {}
    decision: DecisionView | None = None
    story: list[StoryLine] = []
    unenforced: list[str] = []  # limits that it asks for and that its node does not enforce
    not_passed: list[NotPassedView] = []  # results of its dependencies


class InstancePage(Page[InstanceView, int], frozen=True):
    """Instances by index. A page may be short: there are more as long as `next` is given, which goes into `after`."""


class VmView(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual machine. `power` is there as long as its instance runs."""

    project: str
    name: str
    index: int
    state: str  # of its instance
    power: PowerView | None = None
    node: str = ""
    message: str = ""
    needs: dict[str, int] = {}
    ports: dict[str, int] = {}
    since_ms: int | None = None  # since when the instance is in its state

    @property
    def is_over(self) -> bool:
        """Whether it ended and does not come back by itself."""
        return self.state in FINISHED


class VmPage(Page[VmView, str], frozen=True):
    """Virtual machines, newest first. There are more as long as `next` is given (for `after`); a page may be short."""


class WorkloadView(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted, and how far it has come."""

    project: str
    name: str
    kind: str
    state: WorkloadState
    count: int  # of a schedule: the instances of each run
    counts: dict[InstanceState, int]
    priority: int
    message: str = ""
    reason: ReasonView | None = None  # the message as data
    submitted_ms: int
    finished_ms: int | None = None
    labels: dict[str, str] = {}
    template: str = ""  # NAME@VERSION that it was made from; nothing: from a document of its own
    version: int = 1
    changed_ms: int | None = None  # when this version came; nothing: it is the first
    change: str = ""  # where this version comes from: applied, or rolled back and why
    change_reason: ReasonView | None = None  # the same as data
    rollout: RolloutView | None = None
    ready: int | None = None  # of a service: so many of its instances; nothing: this was not looked at
    looping: int | None = None  # of a service: so many keep ending

    @property
    def key(self) -> str:
        """PROJECT/NAME"""
        return f"{self.project}/{self.name}"

    @property
    def is_over(self) -> bool:
        """Whether nothing of it lives or will start again by itself."""
        return self.finished_ms is not None


class WorkloadDetail(WorkloadView, frozen=True, kw_only=True):
    """A workload with the document its user wrote, what one instance needs, and its first instances or its runs."""

    document: dict[str, Any]
    needs: dict[str, int]
    instances: list[InstanceView] = []
    schedule: ScheduleView | None = None  # of a workload with `schedule`


class WorkloadPage(Page[WorkloadView, str], frozen=True):
    """Workloads, newest first. There are more as long as `next` is given (for `after`); a page may be short."""


class SubmittedView(WorkloadView, frozen=True, kw_only=True):
    """A workload that was submitted, and what became of that: it is new, has a new version, or was there already."""

    result: Literal["created", "changed", "unchanged"]
    unenforced: list[str] = []  # limits that it asks for and that no node which may take it enforces


class Accepted(msgspec.Struct, frozen=True):
    """What became of the documents of a batch, in their order."""

    items: list[SubmittedView]


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One instance of a workload; none named: all of them."""

    index: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Again(Chosen, frozen=True, forbid_unknown_fields=True):
    """What to run again. `failed`: only what failed or ran out of time, not what was cancelled or expired."""

    failed: bool = False


class ResultBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of an attempt: how it ended, JSON, or both. Without `code` it goes on, and the last `data` counts.

    Its token is shown with its instance; an older one changes nothing.
    """

    token: Annotated[int, msgspec.Meta(ge=1, le=TOKEN_MAX)]
    code: Annotated[int, msgspec.Meta(ge=0, le=EXIT_CODE_MAX)] | None = None
    message: Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)] = ""
    data: Any = msgspec.UNSET  # any JSON, at most 64 KiB


class PowerBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command for one machine of a workload; without an index: for all of them."""

    action: PowerAction
    index: Annotated[int, msgspec.Meta(ge=0)] | None = None
    grace_ms: Annotated[int, msgspec.Meta(ge=0, le=DURATION_MS_MAX)] | None = None


class TemplateView(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a template. Project `*`: it is shared."""

    project: str
    name: str
    version: int
    versions: list[int]  # those that are kept, the newest last
    description: str = ""
    changed_ms: int  # when this version was made
    changed_by: str


class TemplateDetail(TemplateView, frozen=True, kw_only=True):
    """A version of a template with its parameters and its workload."""

    parameters: dict[str, Parameter]
    workload: dict[str, Any]


class TemplateApplied(TemplateView, frozen=True, kw_only=True):
    """What became of a template that was applied. `dropped`: the version that is not kept any longer, if there is."""

    result: Literal["created", "changed", "unchanged"]
    dropped: int | None = None


class TemplatePage(Page[TemplateView, str], frozen=True):
    """Templates by project and name, each with its newest version; first those that are shared."""


class TunnelBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tunnel leads to: a command that it starts in the run, one of the run's ports, or its serial console."""

    argv: list[str] = []  # of a command
    terminal: bool = False  # the command has a terminal; its stdout and stderr are one stream then
    rows: int = 0  # of the terminal
    columns: int = 0
    term: str = ""  # the kind of terminal (TERM)
    port: str = ""  # the name of a port of the document, or its number
    console: bool = False  # the serial console of a virtual machine


class TunnelView(msgspec.Struct, frozen=True, kw_only=True):
    """A tunnel that waits for its client: connect to `/v1/tunnels/ID` by WebSocket within 15 seconds."""

    id: str
    instance: str
    node: str
    port: int = 0  # of the node
