"""Usage: what the attempts of projects have had and used."""

from functools import partial

import msgspec

from roost.core.state.state import State
from roost.core.state.usage import DAY_MS
from roost.schema.projects import UsagePage
from roost.server.operations.context import Call, period_of, seen_projects
from roost.server.operations.parameters import PAGE_MAX, After, Limit, Since, Until, page_of
from roost.server.views.usage import By, UsageQuery, day_name, usage_rows


async def usage(
    call: Call,
    project: str = "",
    by: By = "project",
    since: Since = "",
    until: Until = "",
    limit: Limit = PAGE_MAX,
    after: After = "",
) -> UsagePage:
    """Sum up what attempts had and used, in whole days (UTC). What still runs counts up to now."""
    period = period_of(since, until, call.now_ms)
    first = period.since_ms // DAY_MS
    last = min(period.until_ms - 1, call.now_ms) // DAY_MS
    query = UsageQuery(call.now_ms, seen_projects(call), project, by, first, last)
    page = await call.context.questions.ask(partial(_page, query, limit, after), call.principal.name)
    return msgspec.msgpack.decode(page, type=UsagePage)


def _page(query: UsageQuery, limit: int, after: str, state: State) -> bytes:
    rows = usage_rows(state, query)
    keys, following = page_of(rows, limit, after)
    first = day_name(query.first_day) if query.first_day > 0 else ""
    page = UsagePage(
        revision=state.revision, items=[rows[key] for key in keys], next=following,
        first_day=first, last_day=day_name(query.last_day),
    )  # fmt: skip
    return msgspec.msgpack.encode(page)
