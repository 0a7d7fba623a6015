"""What handlers reach: the engine, the news, the logs. Put into the application once, taken out per request."""

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, Protocol

from litestar import Request

from roost.model.errors import NotFound
from roost.model.events import Event
from roost.model.workload import Workload
from roost.server.api.permissions import principal_of
from roost.server.auth import Auth
from roost.server.auth_veil import Veil
from roost.server.engine import Engine
from roost.server.history import History
from roost.server.hooks import Hooks
from roost.server.join import Joining
from roost.server.metrics import Census, Metrics
from roost.server.peers import Peers
from roost.server.secrets import Secrets
from roost.server.watch import Watch


class Logs(Protocol):
    """The logs, as far as readers need them. A log's name is PROJECT/NAME/SERIAL/INDEX.ATTEMPT."""

    def size(self, name: str) -> int | None:
        """How many bytes there are; None when there is no such log."""

    def read(self, name: str, offset: int, limit: int) -> bytes:
        """Bytes from an offset on."""

    def finished(self, name: str, over: bool) -> bool:
        """Whether no more will come. `over`: the attempt has ended."""

    def follow(self, name: str, offset: int, is_over: Callable[[], bool]) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces with their offsets as they come; ends when no more will come."""


class Doors(NamedTuple):
    """Everything a handler may need."""

    engine: Engine
    watch: Watch
    logs: Logs
    census: Census
    metrics: Metrics
    auth: Auth
    joining: Joining
    secrets: Secrets
    history: History | None = None
    peers: Peers | None = None  # the other servers, where there can be some
    hooks: Hooks | None = None
    controller: str = ""  # where controllers connect, HOST:PORT


def doors_of(request: "Request[Any, Any, Any]") -> Doors:
    """The doors of the application this request came to."""
    doors = request.app.state["doors"]
    assert isinstance(doors, Doors)
    return doors


async def ask(request: "Request[Any, Any, Any]", make: Callable[[int], Event]) -> Any:
    """Put a change to the engine in the name of whoever asks for it: that is noted in the same commit."""
    return await doors_of(request).engine.ask(make, principal_of(request).by)


def veil_of(request: "Request[Any, Any, Any]") -> Veil:
    """What whoever asks may read of others."""
    return Veil(principal_of(request).access)


async def find(doors: Doors, project: str, name: str) -> Workload:
    """A workload that is known, as of a moment at which everything seen is durable."""
    state = await doors.engine.settled()
    workload = state.workloads.get(f"{project}/{name}")
    if workload is None:
        raise NotFound(f"there is no workload {project}/{name}")
    return workload
