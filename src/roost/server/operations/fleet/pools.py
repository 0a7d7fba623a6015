"""Pools: nodes that belong together, what they have in common, and whether they are well."""

from fractions import Fraction
from heapq import nsmallest

from roost.model import limits
from roost.model.errors import Invalid, NotFound
from roost.model.events import MarkPool, SetPool, Unset
from roost.model.records.project import Pool, check_pool
from roost.model.spec.names import check_text
from roost.model.spec.placement import taints_of
from roost.model.spec.units import duration_ms
from roost.model.states import PoolStatus
from roost.schema.pools import Marking, PoolPage, PoolSettings, PoolView
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit
from roost.server.views.operators import PERCENT, pool_names, pool_views


async def list_pools(call: Call, limit: Limit = PAGE_MAX, after: After = "") -> PoolPage:
    """List pools by name: those that have nodes, and those that have settings."""
    state = await call.engine.settled()
    names = nsmallest(limit + 1, (name for name in pool_names(state) if name > after))
    more = names[limit - 1] if len(names) > limit else None
    return PoolPage(state.revision, [call.redactor.pool(pool) for pool in pool_views(state, names[:limit])], more)


async def get_pool(call: Call, pool: str) -> PoolView:
    """Show a pool: its settings, its nodes, its allocation."""
    state = await call.engine.settled()
    if pool not in pool_names(state):
        raise NotFound(f"there is no pool {pool:.100}: it has neither settings nor nodes", params={"pool": pool})
    return call.redactor.pool(pool_views(state, [pool])[0])


async def set_pool(call: Call, pool: str, fields: PoolSettings) -> PoolView:
    """Set a pool. Running work stays, and so does its status."""
    wanted = _settings(pool, fields)
    check_pool(wanted)
    engine = call.engine
    await call.ask(lambda number: SetPool(number, wanted))
    return call.redactor.pool(pool_views(engine.state, [pool])[0])


async def mark_pool(call: Call, pool: str, fields: Marking) -> PoolView:
    """Set the status of a pool: failed, draining or ready."""
    check_text(fields.reason, "reason")
    if fields.status not in set(PoolStatus):
        raise Invalid("status", f"this is {', '.join(PoolStatus)}, not {fields.status!r:.40}")
    if fields.status == "failed" and not fields.reason.strip():
        raise Invalid("reason", "say why it has failed: work that is moved or cancelled shows it")
    engine = call.engine
    await call.ask(lambda number: MarkPool(number, pool, PoolStatus(fields.status), fields.reason))
    return call.redactor.pool(pool_views(engine.state, [pool])[0])


async def unset_pool(call: Call, pool: str) -> None:
    """Remove the settings and the status of a pool. Its nodes stay."""
    await call.ask(lambda number: Unset(number, "pool", pool))


def _settings(name: str, fields: PoolSettings) -> Pool:
    return Pool(
        name,
        fields.strategy,
        {name: _percent(ratio, f"overcommit.{name:.80}") for name, ratio in fields.overcommit.items()},
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
