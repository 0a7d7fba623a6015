"""Pools: nodes that belong together, what they have in common, and whether they are well."""

from collections.abc import Sequence
from fractions import Fraction

import msgspec

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
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of
from roost.server.views.operators import PERCENT, pool_names, pool_views


async def list_pools(call: Call, limit: Limit = PAGE_MAX, after: After = "") -> PoolPage:
    """List pools by name: those that have nodes, and those that have settings."""
    state = await call.state()
    names, following = page_of(pool_names(state), limit, after)
    return PoolPage(state.revision, _views(call, names), following)


async def get_pool(call: Call, pool: str) -> PoolView:
    """Show a pool: its settings, its nodes, its allocation."""
    if pool not in pool_names(await call.state()):
        raise NotFound(f"there is no pool {pool:.100}: it has neither settings nor nodes", params={"pool": pool})
    return _views(call, [pool])[0]


async def set_pool(call: Call, pool: str, fields: PoolSettings) -> PoolView:
    """Set a pool. Running work stays, and so does its status."""
    wanted = _settings(pool, fields)
    check_pool(wanted)
    await call.ask(lambda number: SetPool(number, wanted))
    return _views(call, [pool])[0]


async def mark_pool(call: Call, pool: str, fields: Marking) -> PoolView:
    """Set the status of a pool: failed, draining or ready."""
    check_text(fields.reason, "reason")
    if fields.status not in set(PoolStatus):
        raise Invalid("status", f"this is {', '.join(PoolStatus)}, not {fields.status!r:.40}")
    if fields.status == "failed" and not fields.reason.strip():
        raise Invalid("reason", "say why it has failed: work that is moved or cancelled shows it")
    await call.ask(lambda number: MarkPool(number, pool, PoolStatus(fields.status), fields.reason))
    return _views(call, [pool])[0]


async def unset_pool(call: Call, pool: str) -> None:
    """Remove the settings and the status of a pool. Its nodes stay."""
    await call.ask(lambda number: Unset(number, "pool", pool))


def _views(call: Call, names: Sequence[str]) -> list[PoolView]:
    return [call.redactor.pool(pool) for pool in pool_views(call.engine.state, names)]


def _settings(name: str, fields: PoolSettings) -> Pool:
    given = msgspec.structs.asdict(fields)
    fail_after = given.pop("fail_after")
    given |= {
        "overcommit": {name: _percent(ratio, f"overcommit.{name:.80}") for name, ratio in fields.overcommit.items()},
        "taints": taints_of(fields.taints, "taints"),
        "projects": tuple(sorted(set(fields.projects))),
        "fail_after_ms": duration_ms(fail_after, "fail_after") if fail_after is not None else 0,
    }
    return Pool(name, **given)


def _percent(ratio: int | float, path: str) -> int:
    most = limits.OVERCOMMIT_MAX // PERCENT
    if not 1 <= ratio <= most:
        raise Invalid(path, f"a ratio is 1 to {most}, such as 1.5")
    percent = Fraction(str(ratio)) * PERCENT
    if percent.denominator != 1:
        raise Invalid(path, "a ratio has at most two digits after the point, such as 1.25")
    return int(percent)
