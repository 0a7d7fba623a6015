"""Which state a request is about: the one that is, or one that was."""

from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, TypeVar

from litestar import Request, Response
from litestar.datastructures import ResponseHeader
from litestar.params import QueryParameter

from roost.core.state import State
from roost.model.errors import NotFound
from roost.model.workload import Workload
from roost.server.api.doors import doors_of
from roost.server.history import Moment, needed

AT_LENGTH_MAX = 100
REVISION, TIME, GAP = "Roost-Revision", "Roost-At", "Roost-Gap"

At = Annotated[
    str,
    QueryParameter(
        max_length=AT_LENGTH_MAX, description="As it was: a time (RFC 3339), a duration ago (`2h`) or `@REVISION`."
    ),
]
AT_HEADERS = [
    ResponseHeader(name=REVISION, documentation_only=True, description="With `at`: the commit that is shown."),
    ResponseHeader(name=TIME, documentation_only=True, description="With `at`: when that was."),
    ResponseHeader(name=GAP, documentation_only=True, description="With `at`: why it may not be what was asked for."),
]

View = TypeVar("View")


class Seen(NamedTuple):
    """A state, and if it is one of the past, when that was."""

    state: State
    moment: Moment | None = None

    def workload(self, project: str, name: str) -> Workload:
        """A workload that is, or was, known."""
        found = self.state.workloads.get(f"{project}/{name}")
        if found is None:
            when = f" at that time; `roost history {name}` finds what had that name" if self.moment else ""
            raise NotFound(f"there {'was' if self.moment else 'is'} no workload {project}/{name}{when}")
        return found

    def shows(self, view: View) -> Response[View]:
        """The answer, which says of when it is."""
        if self.moment is None:
            return Response(view)
        told = {REVISION: str(self.moment.revision), TIME: rfc3339(self.moment.at_ms)}
        if self.moment.gap:
            told[GAP] = self.moment.gap
        return Response(view, headers=told)


async def look(request: "Request[Any, Any, Any]", at: str) -> Seen:
    """The state that is asked for, with nothing in it that is not durable; good until somebody else has a turn."""
    doors = doors_of(request)
    if not at:
        return Seen(await doors.engine.settled())
    past = await needed(doors.history).at(at, doors.engine.clock.now_ms())
    return Seen(past.state, past.moment)


def rfc3339(at_ms: int) -> str:
    """A time as everybody reads it."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
