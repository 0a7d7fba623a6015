"""What operations reach, and in whose name one is called."""

from collections.abc import Callable
from typing import Any, NamedTuple

from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.events import Event, PutRecords
from roost.model.records.opaque import OpaqueRecord
from roost.model.records.workload import Workload
from roost.server.agents.log_store import LogHub
from roost.server.auth.middleware import Auth
from roost.server.auth.principal import Principal, Redactor
from roost.server.cluster.peers import Peers
from roost.server.engine.engine import Engine
from roost.server.engine.plan_tokens import Plans
from roost.server.engine.questions import Questions
from roost.server.feed.change_log import Watch
from roost.server.history.service import History
from roost.server.observability.metrics import CountCache, Metrics
from roost.server.pki.enrolment import Joining
from roost.server.pki.secrets import Secrets
from roost.server.webhooks.dispatcher import Hooks


class Context(NamedTuple):
    engine: Engine
    watch: Watch
    logs: LogHub
    census: CountCache
    metrics: Metrics
    auth: Auth
    joining: Joining
    secrets: Secrets
    questions: Questions
    history: History | None = None
    peers: Peers | None = None  # the other servers, where there can be some
    hooks: Hooks | None = None
    controller: str = ""  # where controllers connect, HOST:PORT
    plans: Plans = Plans()


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

    async def put(self, *records: OpaqueRecord) -> None:
        """Store records that the core does not read, or delete those without a value."""
        await self.ask(lambda number: PutRecords(number, records))

    async def state(self) -> State:
        """The state with nothing in it that is not durable, good until the next await."""
        return await self.engine.settled()

    async def records(self, kind: str) -> dict[str, bytes]:
        """The durable records of a kind that the core does not read."""
        return (await self.state()).opaque_records.get(kind, {})

    async def workload(self, project: str, name: str) -> Workload:
        workload = (await self.state()).workloads.get(f"{project}/{name}")
        if workload is None:
            raise NotFound(f"there is no workload {project}/{name}", params={"workload": project})
        return workload
