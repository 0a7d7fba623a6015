"""Pools: nodes that belong together, what they have in common, and whether they are well."""

from fractions import Fraction
from heapq import nsmallest
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, put
from litestar.params import FromPath, QueryParameter

from roost.model import limits
from roost.model.errors import Invalid, NotFound
from roost.model.events import MarkPool, SetPool, Unset
from roost.model.names import check_text
from roost.model.placement import taints_of
from roost.model.project import POOL_STATUSES as STATUSES
from roost.model.project import Pool, check_pool
from roost.model.units import duration_ms
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.setting_views import PERCENT, PoolView, pool_names, pool_views

PAGE_MAX = 1_000

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class PoolPage(msgspec.Struct, frozen=True):
    """Pools by name. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[PoolView]
    next: str | None = None


class PoolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the nodes of a pool have in common; what is left out gets its default.

    `strategy` is for workloads that name this pool alone and no strategy. `overcommit`: how often cpu and memory may
    be promised, as a ratio from 1 to 10 in hundredths, such as {"cpu": 1.5}. Labels, zone, rack and region are those of
    its nodes where these do not say otherwise; taints add to theirs. `projects`: for whom it is; none: for everybody.
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
    moved or cancelled, as its settings say). A pool that has failed needs a reason: its work is told it."""

    status: str
    reason: str = ""


@get("/v1/pools", operation_id="list_pools", responses=refusals(403, 422, 503))
async def list_pools(
    request: Request[Any, Any, Any],
    limit: PageLimit = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> PoolPage:
    """List pools by name: those that have nodes, and those that have settings."""
    state = await doors_of(request).engine.settled()
    names = nsmallest(limit + 1, (name for name in pool_names(state) if name > after))
    more = names[limit - 1] if len(names) > limit else None
    return PoolPage(state.revision, [veil_of(request).pool(each) for each in pool_views(state, names[:limit])], more)


@get("/v1/pools/{pool:str}", operation_id="get_pool", responses=refusals(403, 404, 503))
async def get_pool(request: Request[Any, Any, Any], pool: FromPath[str]) -> PoolView:
    """Look at a pool: its settings, its nodes, what is given away."""
    state = await doors_of(request).engine.settled()
    if pool not in pool_names(state):
        raise NotFound(f"there is no pool {pool:.100}: it has neither settings nor nodes")
    return veil_of(request).pool(pool_views(state, [pool])[0])


@put(
    "/v1/pools/{pool:str}",
    operation_id="set_pool",
    operation_class=taking(PoolSettings),
    responses=refusals(403, 409, 413, 415, 422, 503),
)
async def set_pool(request: Request[Any, Any, Any], pool: FromPath[str]) -> PoolView:
    """Set what the nodes of a pool have in common. What runs stays where it is, and a failed pool stays failed."""
    fields = await read_fields(request, PoolSettings, required=True)
    wanted = _settings(pool, fields)
    check_pool(wanted)
    engine = doors_of(request).engine
    await ask(request, lambda number: SetPool(number, wanted))
    return veil_of(request).pool(pool_views(engine.state, [pool])[0])


@put(
    "/v1/pools/{pool:str}/status",
    operation_id="mark_pool",
    operation_class=taking(Marking),
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def mark_pool(request: Request[Any, Any, Any], pool: FromPath[str]) -> PoolView:
    """Say that a pool has failed, is to be emptied, or is well again."""
    fields = await read_fields(request, Marking, required=True)
    check_text(fields.reason, "reason")
    if fields.status not in STATUSES:
        raise Invalid("status", f"this is {', '.join(STATUSES)}, not {fields.status!r:.40}")
    if fields.status == "failed" and not fields.reason.strip():
        raise Invalid("reason", "say why it has failed: everything that is moved or cancelled is told")
    engine = doors_of(request).engine
    await ask(request, lambda number: MarkPool(number, pool, fields.status, fields.reason))
    return veil_of(request).pool(pool_views(engine.state, [pool])[0])


@delete("/v1/pools/{pool:str}", operation_id="unset_pool", status_code=204, responses=refusals(403, 404, 503))
async def unset_pool(request: Request[Any, Any, Any], pool: FromPath[str]) -> None:
    """Forget the settings of a pool: it is as if it had never been set or failed. Its nodes stay."""
    await ask(request, lambda number: Unset(number, "pool", pool))


def _settings(name: str, fields: PoolSettings) -> Pool:
    return Pool(
        name,
        fields.strategy,
        {each: _percent(ratio, f"overcommit.{each:.80}") for each, ratio in fields.overcommit.items()},
        fields.labels,
        taints_of(fields.taints, "taints"),
        fields.zone,
        fields.rack,
        fields.region,
        tuple(sorted(set(fields.projects))),
        fields.when_failed,
        fields.fallback,
        duration_ms(fields.fail_after, "fail_after") if fields.fail_after is not None else 0,
    )


def _percent(ratio: int | float, path: str) -> int:
    most = limits.OVERCOMMIT_MAX // PERCENT
    if not 1 <= ratio <= most:
        raise Invalid(path, f"a ratio is 1 to {most}, such as 1.5")
    percent = Fraction(str(ratio)) * PERCENT
    if percent.denominator != 1:
        raise Invalid(path, "a ratio has at most two digits after the point, such as 1.25")
    return int(percent)
