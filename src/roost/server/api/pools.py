"""Pools: nodes that belong together, with a strategy of their own and what may be promised more than once."""

from fractions import Fraction
from heapq import nsmallest
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, put
from litestar.params import FromPath, QueryParameter

from roost.model import limits
from roost.model.errors import Invalid, NotFound
from roost.model.events import SetPool, Unset
from roost.model.project import Pool, check_pool
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of
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
    be promised, as a ratio from 1 to 10 in hundredths, such as {"cpu": 1.5}.
    """

    strategy: str = ""
    overcommit: dict[str, int | float] = {}


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
    return PoolPage(state.revision, pool_views(state, names[:limit]), more)


@get("/v1/pools/{pool:str}", operation_id="get_pool", responses=refusals(403, 404, 503))
async def get_pool(request: Request[Any, Any, Any], pool: FromPath[str]) -> PoolView:
    """Look at a pool: its settings, its nodes, what is given away."""
    state = await doors_of(request).engine.settled()
    if pool not in pool_names(state):
        raise NotFound(f"there is no pool {pool:.100}: it has neither settings nor nodes")
    return pool_views(state, [pool])[0]


@put(
    "/v1/pools/{pool:str}",
    operation_id="set_pool",
    operation_class=taking(PoolSettings),
    responses=refusals(403, 409, 413, 415, 422, 503),
)
async def set_pool(request: Request[Any, Any, Any], pool: FromPath[str]) -> PoolView:
    """Set strategy and overcommit of a pool. What runs stays where it is."""
    fields = await read_fields(request, PoolSettings, required=True)
    overcommit = {name: _percent(ratio, f"overcommit.{name:.80}") for name, ratio in fields.overcommit.items()}
    wanted = Pool(pool, fields.strategy, overcommit)
    check_pool(wanted)
    engine = doors_of(request).engine
    await ask(request, lambda number: SetPool(number, wanted))
    return pool_views(engine.state, [pool])[0]


@delete("/v1/pools/{pool:str}", operation_id="unset_pool", status_code=204, responses=refusals(403, 404, 503))
async def unset_pool(request: Request[Any, Any, Any], pool: FromPath[str]) -> None:
    """Forget the settings of a pool: the server's strategy, and nothing promised twice. Its nodes stay."""
    await ask(request, lambda number: Unset(number, "pool", pool))


def _percent(ratio: int | float, path: str) -> int:
    most = limits.OVERCOMMIT_MAX // PERCENT
    if not 1 <= ratio <= most:
        raise Invalid(path, f"a ratio is 1 to {most}, such as 1.5")
    percent = Fraction(str(ratio)) * PERCENT
    if percent.denominator != 1:
        raise Invalid(path, "a ratio has at most two digits after the point, such as 1.25")
    return int(percent)
