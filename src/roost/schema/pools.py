"""Pools of nodes."""

import msgspec

from roost.schema.page import Page


class PoolRoom(msgspec.Struct, frozen=True):
    """How much of a resource is given away, how much the nodes have, and how much may be given away."""

    used: int
    total: int
    limit: int


class PoolSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What is set of a pool, and how it stands.

    Labels, taints and places are what it says for its nodes; `strategy` "": the server's. `status` is ready, draining
    or failed; `failed_by`: operator, or silence. `fail_after_ms` None: only an operator can mark it failed.
    `projects`: those that may use it, as far as you may see them; none and not `restricted`: all projects.
    """

    name: str
    strategy: str
    overcommit: dict[str, float]
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


class PoolView(PoolSetting, frozen=True, kw_only=True):
    """Nodes that belong together, with what is set of them. `resources` are those of its nodes that are online."""

    is_set: bool
    nodes: int
    ready: int
    resources: dict[str, PoolRoom]


class PoolPage(Page[PoolView, str], frozen=True):
    """Pools by name. There are more as long as `next` is given, which goes into `after`."""


class PoolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the nodes of a pool have in common; what is left out gets its default.

    `strategy` is for workloads that name this pool alone and no strategy. `overcommit`: how often cpu and memory may
    be promised, as a ratio from 1 to 10 in hundredths, such as {"cpu": 1.5}. Labels, zone, rack and region are those of
    its nodes where these do not say otherwise; taints add to theirs. `projects`: those that may use it; none: all.
    `when_failed`: whether unfinished work is moved or cancelled if it fails; `fallback`: the pool that then takes what
    asked for it; `fail_after`: without a node in touch for so long, like `5m`, it has failed.
    """

    strategy: str = ""
    overcommit: dict[str, int | float] = {}
    labels: dict[str, str] = {}
    taints: list[str] = []
    zone: str = ""
    rack: str = ""
    region: str = ""
    projects: list[str] = []
    when_failed: str = "move"
    fallback: str = ""
    fail_after: int | float | str | None = None


class Marking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a pool stands: `ready`, `draining` (nothing new; jobs finish, services move) or `failed` (unfinished work is
    moved or cancelled, as its settings say). A failed pool needs a reason, which its work shows."""

    status: str
    reason: str = ""
