"""Which state a question is about: the present one, or one of the past."""

from typing import Generic, NamedTuple, TypeVar

from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.records.workload import Workload
from roost.server.history.as_of import Moment
from roost.server.history.service import needed
from roost.server.operations.context import Call

View = TypeVar("View")


class AsOf(NamedTuple, Generic[View]):
    """An answer, and if it is about the past, when that was."""

    view: View
    moment: Moment | None = None


class Seen(NamedTuple):
    """A state, and if it is one of the past, when that was."""

    state: State
    moment: Moment | None = None

    def workload(self, project: str, name: str) -> Workload:
        """A workload that is, or was, known."""
        found = self.state.workloads.get(f"{project}/{name}")
        if found is None:
            when = f" at that time; `roost history {name}` finds what had that name" if self.moment else ""
            message = f"there {'was' if self.moment else 'is'} no workload {project}/{name}{when}"
            raise NotFound(message, params={"workload": f"{project}/{name}"})
        return found

    def shows(self, view: View) -> AsOf[View]:
        """The answer with its moment."""
        return AsOf(view, self.moment)


async def state_at(call: Call, at: str) -> Seen:
    """The state that is asked for, with nothing in it that is not durable; good until the next await."""
    if not at:
        return Seen(await call.state())
    past = await needed(call.context.history).at(at, call.engine.clock.now_ms())
    return Seen(past.state, past.moment)
