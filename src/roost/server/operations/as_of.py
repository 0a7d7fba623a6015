"""Questions about the past: a state of then, or a search in the history of what the caller may see."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.records.workload import Workload
from roost.model.spec.units import duration_ms, is_moment, moment_ms
from roost.server.history.as_of import Moment
from roost.server.history.search import Period, Projects
from roost.server.history.service import needed
from roost.server.operations.context import Call

View = TypeVar("View")
Found = TypeVar("Found")


class AsOf(NamedTuple, Generic[View]):
    """An answer, and its moment if it is about the past."""

    view: View
    moment: Moment | None = None


class Seen(NamedTuple):
    state: State
    moment: Moment | None = None

    def workload(self, project: str, name: str) -> Workload:
        found = self.state.workloads.get(f"{project}/{name}")
        if found is None:
            when = f" at that time; `roost history {name}` finds what had that name" if self.moment else ""
            message = f"there {'was' if self.moment else 'is'} no workload {project}/{name}{when}"
            raise NotFound(message, params={"workload": f"{project}/{name}"})
        return found

    def shows(self, view: View) -> AsOf[View]:
        return AsOf(view, self.moment)


async def state_at(call: Call, at: str) -> Seen:
    """The state of a time, without what is not durable; valid until the next await."""
    if not at:
        return Seen(await call.state())
    past = await needed(call.context.history).at(at, call.now_ms)
    return Seen(past.state, past.moment)


async def search(call: Call, query: Callable[..., Found], *wanted: Any) -> Found:
    """Search the history of the projects that the caller may see. Raises NotFound if none is kept."""
    return await needed(call.context.history).read(query, *wanted, seen_projects(call))


def seen_projects(call: Call) -> Projects:
    """The projects whose past the caller may see; None: all of them."""
    access = call.principal.access
    return None if access.sees_all else frozenset(access.ranks)


def period_of(since: str, until: str, now_ms: int) -> Period:
    whole = Period()
    return Period(
        _moment_ms(since, "since", now_ms) if since else whole.since_ms,
        _moment_ms(until, "until", now_ms) if until else whole.until_ms,
    )


def _moment_ms(text: str, path: str, now_ms: int) -> int:
    return moment_ms(text, path, now_ms) if is_moment(text) else now_ms - duration_ms(text, path)
