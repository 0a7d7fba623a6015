"""What operations reach, in whose name one is called, and which state it reads: the present one, or one of the past."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.events import Event, PutRecords
from roost.model.records.opaque import Audit, OpaqueRecord
from roost.model.records.workload import Workload
from roost.model.spec.units import past_ms
from roost.schema.page import HistoryBehind
from roost.server.auth.middleware import Auth
from roost.server.auth.principal import Principal, Redactor
from roost.server.cluster.peers import Peers
from roost.server.engine.engine import Engine
from roost.server.engine.plan_tokens import Plans
from roost.server.engine.questions import Questions
from roost.server.feed.change_log import Watch
from roost.server.files.copying import Copying
from roost.server.files.keys import BlobKeys
from roost.server.files.store import Files
from roost.server.history.as_of import Moment
from roost.server.history.search import Period, Projects
from roost.server.history.service import History, needed
from roost.server.logs.hub import LogHub
from roost.server.observability.census import Census
from roost.server.observability.metrics import Metrics
from roost.server.pki.enrolment import Joining
from roost.server.pki.secrets import Secrets
from roost.server.tunnels.tunnels import TunnelBroker
from roost.server.webhooks.dispatcher import Hooks

View = TypeVar("View")
Found = TypeVar("Found")
Next = TypeVar("Next")


class Context(NamedTuple):
    engine: Engine
    watch: Watch
    logs: LogHub
    census: Census
    metrics: Metrics
    auth: Auth
    joining: Joining
    secrets: Secrets
    questions: Questions
    reading: Questions  # of large documents
    hooks: Hooks
    files: Files
    copying: Copying
    blob_keys: BlobKeys
    tunnels: TunnelBroker
    history: History | None = None
    peers: Peers | None = None  # the other servers, where there can be some
    controller: str = ""  # where controllers connect, HOST:PORT
    controller_tls: bool = False
    plans: Plans = Plans()

    def note(self, principal: Principal, what: str, target: str, detail: str, *, refused: bool = False) -> None:
        """Write something that changed nothing into the audit log of the history, if one is kept."""
        if self.history is not None:
            now_ms, revision = self.engine.clock.now_ms(), self.engine.state.revision
            self.history.note(
                Audit(0, now_ms, principal.name, principal.where, what, target, revision, detail, refused)
            )


class Call(NamedTuple):
    context: Context
    principal: Principal

    @property
    def engine(self) -> Engine:
        return self.context.engine

    @property
    def now_ms(self) -> int:
        return self.context.engine.clock.now_ms()

    @property
    def redactor(self) -> Redactor:
        return Redactor(self.principal.access)

    async def ask(self, make: Callable[[int], Event]) -> Any:
        """Put a change to the engine in the principal's name, which is recorded in the same commit."""
        return await self.engine.ask(make, self.principal.by)

    async def put(self, *records: OpaqueRecord, detail: str = "") -> None:
        """Store records that the core does not read, or delete those without a value. `detail`: for the audit log."""
        await self.ask(lambda number: PutRecords(number, records, detail))

    async def state(self) -> State:
        """The state with nothing in it that is not durable, good until the next await."""
        return await self.engine.read()

    async def records(self, kind: str) -> dict[str, bytes]:
        """The durable records of a kind that the core does not read."""
        return (await self.state()).opaque_records.get(kind, {})

    async def workload(self, project: str, name: str) -> Workload:
        workload = (await self.state()).workloads.get(f"{project}/{name}")
        if workload is None:
            raise NotFound(f"there is no workload {project}/{name}", params={"workload": f"{project}/{name}"})
        return workload


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
    return Seen(*await needed(call.context.history).at(at, call.now_ms))


async def search(
    call: Call, query: Callable[..., tuple[Found, Next]], *wanted: Any
) -> tuple[Found, Next, HistoryBehind | None]:
    """Search the history of the projects that the caller may see. Raises NotFound if none is kept."""
    history = needed(call.context.history)
    behind = await history.behind()
    return *await history.read(query, *wanted, seen_projects(call)), behind


def seen_projects(call: Call) -> Projects:
    """The projects whose past the caller may see; None: all of them."""
    access = call.principal.access
    return None if access.sees_all else frozenset(access.ranks)


def period_of(since: str, until: str, now_ms: int) -> Period:
    whole = Period()
    return Period(
        past_ms(since, "since", now_ms) if since else whole.since_ms,
        past_ms(until, "until", now_ms) if until else whole.until_ms,
    )
