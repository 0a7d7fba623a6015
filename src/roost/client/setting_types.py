"""What the server answers about what operators set: projects, pools, reservations. Names as in types.py."""

import msgspec


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks: what was set (`is_set`), what it holds, how many of its instances wait, its share from 0 to 1."""

    name: str
    is_set: bool
    weight: int
    quota: dict[str, int]
    borrow: bool
    counted: bool
    held: dict[str, int]
    waiting: int
    share: float
    dominant: str


class PoolRoom(msgspec.Struct, frozen=True):
    """How much of a resource is given away, how much the nodes have, and how much may be given away."""

    used: int
    total: int
    limit: int


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that belong together, and what they have in common."""

    name: str
    is_set: bool
    strategy: str
    overcommit: dict[str, float]
    nodes: int
    ready: int
    resources: dict[str, PoolRoom]
    labels: dict[str, str] = {}
    taints: list[str] = []
    zone: str = ""
    rack: str = ""
    region: str = ""
    projects: list[str] = []
    restricted: bool = False
    when_failed: str = "move"
    fallback: str = ""
    fail_after_ms: int | None = None
    status: str = "ready"
    reason: str = ""
    failed_by: str = ""


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """Whether everything is held where it is, since when and why. Without `until_ms`: until somebody ends it."""

    on: bool
    reason: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that only one project may use. Without `end_ms`: until it is cancelled."""

    name: str
    project: str
    nodes: list[str]
    start_ms: int
    end_ms: int | None = None
    active: bool


class ProjectPage(msgspec.Struct, frozen=True):
    """Projects as of a revision."""

    revision: int
    items: list[Project]
    next: str | None = None


class PoolPage(msgspec.Struct, frozen=True):
    """Pools as of a revision."""

    revision: int
    items: list[Pool]
    next: str | None = None


class ReservationPage(msgspec.Struct, frozen=True):
    """Reservations as of a revision."""

    revision: int
    items: list[Reservation]
    next: str | None = None
