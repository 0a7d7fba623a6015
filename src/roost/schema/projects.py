"""Projects and reservations."""

import msgspec

from roost.model.states import IsolationLevel
from roost.schema.page import Page


class ProjectSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What is set of a project. Quota: cpu_milli, gpu_milli, memory and disk in bytes, instances, others counted.

    `files` and `file_bytes` bound the inputs and outputs that its workloads keep, each set of files once.
    `isolation`: the least that a node of its processes offers. `run_as`: users that they may have besides its own.
    """

    name: str
    weight: int
    quota: dict[str, int]
    borrow: bool
    counted: bool
    isolation: IsolationLevel = IsolationLevel.NONE
    run_as: list[str] = []


class ProjectView(ProjectSetting, frozen=True, kw_only=True):
    """Who asks. Quota and held: cpu_milli, gpu_milli, memory and disk in bytes, instances, others counted.

    `share` is the largest part of the fleet that it holds of any resource, from 0 to 1, and `dominant` that resource.
    Of projects of one priority the one with the smallest share per weight goes first.
    """

    is_set: bool
    allocated: dict[str, int]
    waiting: int
    share: float
    dominant: str


class ProjectPage(Page[ProjectView, str], frozen=True):
    """Projects by name. There are more as long as `next` is given, which goes into `after`."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What attempts have had and used. Times of cores and GPUs in ms, memory in KiB times seconds, io in bytes.

    Use is known of the attempts that were measured: `cpu_measured_ms` and `memory_measured_kib_s` are what those had.
    """

    project: str = ""
    workload: str = ""  # the name that runs of the same work share; nothing: all others together
    day: str = ""  # in UTC
    attempts: int = 0  # that have ended
    unreported: int = 0  # of them: their end was not reported, so what they used is unknown
    running: int = 0  # attempts that go on: what they have had so far is counted, what they used is not known yet
    wall_ms: int = 0
    cpu_ms: int = 0
    memory_kib_s: int = 0
    gpu_ms: int = 0
    cpu_used_ms: int = 0
    cpu_measured_ms: int = 0
    memory_used_kib_s: int = 0  # the peak of each attempt, for as long as it ran
    memory_measured_kib_s: int = 0
    io_read: int = 0
    io_written: int = 0


class UsagePage(Page[UsageRow, str], frozen=True, kw_only=True):
    """Usage of whole days, by project, workload or day."""

    first_day: str = ""  # nothing: as far back as there is any
    last_day: str = ""


class ProjectSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weight and quota of a project; what is left out gets its default.

    Quota: `cpu` (10, "500m"), `memory`, `disk` ("4GiB"), `gpu`, `instances`, `files`, `file_bytes` ("1TiB"), or any
    other resource; what it does not name is not bounded. `borrow`: it may go beyond with what other quotas leave.
    `counted`: it is only looked at. `isolation`: its processes run only where at least this is offered. `run_as`: names
    of users of nodes, or `root`, that its processes may have.
    """

    weight: int = 1
    quota: dict[str, int | float | str] = {}
    borrow: bool = False
    counted: bool = False
    isolation: IsolationLevel = IsolationLevel.NONE
    run_as: list[str] = []


class ReservationSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that only one project may use. Without `end_ms`: until it is cancelled."""

    name: str
    project: str
    nodes: list[str]
    start_ms: int
    end_ms: int | None = None


class ReservationView(ReservationSetting, frozen=True, kw_only=True):
    """Nodes that only one project may use, and whether that is so at this moment."""

    active: bool


class ReservationPage(Page[ReservationView, str], frozen=True):
    """Reservations by name. There are more as long as `next` is given (for `after`); a page may be short."""


class Reserving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes for a project: by their names, or a count of them and perhaps a pool to choose them from.

    `start` and `end` are moments with a time zone (`2030-01-31T18:00Z`) or durations from now (`2h`). Without `start`
    it begins at once; without `end` it lasts until it is cancelled.
    """

    name: str
    project: str
    nodes: list[str] = []
    count: int | None = None
    pool: str = ""
    start: int | float | str | None = None
    end: int | float | str | None = None
