"""A whole server in one process with stores in memory. Agents are played by hand, straight into the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
from litestar import Litestar

from roost.blobs.factory import memory_blobs
from roost.blobs.log_memory import MemoryLogs
from roost.blobs.object_memory import MemoryObjects
from roost.core.state.outcome import Orders
from roost.core.state.records import Settings
from roost.model.events import NodeConnected, NodeDisconnected, ReportsReceived
from roost.model.protocol import Drop, Hello, Report, Run, Stop
from roost.model.records.node import Facts
from roost.ports.store import Store
from roost.server.auth.middleware import Auth, AuthMiddleware
from roost.server.engine.engine import Clock, Engine
from roost.server.engine.executor import Executor
from roost.server.engine.machine import Role
from roost.server.engine.questions import Questions
from roost.server.feed.change_log import Watch
from roost.server.files.copying import Copying
from roost.server.files.keys import BlobKeys
from roost.server.files.store import Files
from roost.server.history.service import History
from roost.server.http.api.routes import make_api
from roost.server.http.server import Web, listen
from roost.server.logs.hub import LogHub
from roost.server.observability.metrics import Metrics
from roost.server.operations.context import Context
from roost.server.operations.dispatch import Dispatcher
from roost.server.operations.work.named_files import is_named_in
from roost.server.pki.certificates import Certificates
from roost.server.pki.encryption import Seal
from roost.server.pki.enrolment import Joining
from roost.server.pki.secrets import Secrets
from roost.server.tunnels.tunnels import TunnelBroker
from roost.server.webhooks.destinations import Destinations
from roost.server.webhooks.dispatcher import Hooks
from roost.stores.memory import MemoryStore
from tests.certified import authority

TOKEN = "the-token-of-the-roost"
KEY = bytes(32)  # of the seal
LEASE_MS = 600_000  # agents that are played by hand send no heartbeats, and no node is lost on a busy machine
DEADLINE_S = 60.0  # against hanging: what is waited for takes milliseconds on an idle machine


# An API takes longer to make than most tests take to run, and all it knows of its server is the dispatcher.
_spare_apis: list[Litestar] = []


class Streams:
    """The agents' door, for those who look at what went out instead of sending it."""

    def __init__(self) -> None:
        self.sent: list[Orders] = []
        self.acknowledged: dict[str, int] = {}
        self.closed: list[str] = []
        self.resets = 0
        self.machine = SimpleNamespace(sessions={})

    def send(self, orders: Orders) -> None:
        self.sent.append(orders)

    def acknowledge(self, acknowledged: dict[str, int]) -> None:
        self.acknowledged.update(acknowledged)

    def close(self, node: str) -> None:
        self.closed.append(node)

    def reset(self) -> None:
        self.resets += 1


class Played:
    """An agent played by hand."""

    def __init__(self, server: "InprocessServer", name: str) -> None:
        self.server = server
        self.name = name
        self.session = 0
        self.sequence = 0

    async def hello(self, cpu: int = 4_000, **facts: Any) -> None:
        """Say hello."""
        facts = {"resources": {"cpu": cpu, "memory": 1 << 30}, **facts}
        hello = Hello(self.name, f"machine-{self.name}", Facts(**facts), 1)
        self.session = await self.server.engine.ask(lambda request: NodeConnected(request, hello))

    def orders(self, kind: type = Run) -> list[Any]:
        """What it was ordered, oldest first."""
        sent = [orders for orders in self.server.streams.sent if orders.node == self.name]
        return [order for orders in sent for order in orders.orders if isinstance(order, kind)]

    async def says(self, *reports: Report) -> None:
        """Report, and wait until that is durable."""
        self.sequence += 1
        self.server.engine.tell(ReportsReceived(self.name, self.session, self.sequence, reports))
        await self.server.until(lambda: self.server.streams.acknowledged.get(self.name, 0) >= self.sequence)

    async def starts(self, run: Run) -> None:
        await self.says(Report(run.token, "running"))

    async def ends(self, run: Run, code: int = 0, **fields: Any) -> None:
        await self.says(Report(run.token, "ended", cause="exited", code=code, **fields))

    async def stops(self, stop: Stop) -> None:
        await self.says(Report(stop.token, "ended", cause="stopped", signal=15))

    async def parts(self) -> None:
        """Its stream breaks."""
        self.server.engine.tell(NodeDisconnected(self.name, self.session))
        await self.server.until(lambda: not self.server.engine.state.liveness[self.name].connected)


class InprocessServer:
    """What a server is made of."""

    def __init__(self, store: Store, settings: Settings, watch: Watch, history: History | None = None) -> None:
        self.watch = watch
        self.history = history
        self.logs = LogHub(MemoryLogs(), MemoryObjects(), settle_ms=0, stall_ms=500)
        self.perform = Executor(self.watch, self.logs, history)
        self.streams = Streams()
        self.perform.streams = self.streams
        self.engine = Engine(store, settings, self.perform, Clock())
        self.auth = Auth(self.engine, TOKEN)
        self.secrets = Secrets(self.engine)
        self.secrets.seal = Seal(KEY)
        self.hooks = self.perform.hooks = Hooks(
            self.engine, destinations=Destinations(["public", "127.0.0.0/8"])
        )  # reported of all, silent until it is run
        self.hooks.seal = Seal(KEY)
        self.files = Files(
            memory_blobs(), self.engine.clock.now_ms, lambda: self.engine.machine.epoch,
            is_named=lambda project, files: is_named_in(self.engine.state, project, files),
        )  # fmt: skip
        self.copying = Copying(self.engine, self.files, Questions(self.engine))
        self.blob_keys = BlobKeys(self.engine, None)
        self.blob_keys.seal = Seal(KEY)
        metrics = Metrics(self.engine, self.perform, self.files)
        self.context = Context(
            self.engine,
            self.watch,
            self.logs,
            self.perform.census,
            metrics,
            self.auth,
            self._joining(),
            self.secrets,
            Questions(self.engine),
            Questions(self.engine),
            self.hooks,
            self.files,
            self.copying,
            self.blob_keys,
            TunnelBroker(self.engine, history),
            history,
        )
        self.dispatcher = Dispatcher(self.context)
        self.api = _spare_apis.pop() if _spare_apis else make_api(self.dispatcher)
        self.api.state.dispatcher = self.dispatcher
        self.door = AuthMiddleware(self.api, self.auth)
        transport = httpx.ASGITransport(app=self.door)
        self.client = httpx.AsyncClient(
            transport=transport, base_url="http://roost", headers={"authorization": f"Bearer {TOKEN}"}
        )

    def _joining(self) -> Joining:
        joining = Joining(self.engine)
        joining.begin(Certificates(self.engine, authority(), ("roost:8421",)), ("http://roost",))
        return joining

    async def agent(self, name: str = "n1", **facts: Any) -> Played:
        """An agent that has sent hello."""
        agent = Played(self, name)
        await agent.hello(**facts)
        return agent

    async def submit(self, name: str = "job", **fields: Any) -> dict[str, Any]:
        """Submit a workload that is taken in."""
        answer = await self.client.post("/v1/workloads", json={"name": name, "command": "true", **fields})
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def get(self, path: str, expect: int = 200, **query: Any) -> Any:
        """What is at a path."""
        answer = await self.client.get(path, params=query)
        assert answer.status_code == expect, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, expect: int = 200) -> Any:
        """The answer to a request."""
        answer = await self.client.post(path, json=body) if body is not None else await self.client.post(path)
        assert answer.status_code == expect, answer.text
        return answer.json()

    async def until(self, holds: Callable[[], Any]) -> Any:
        """Wait until something holds of the state, looked at after every commit."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := holds()):
                await asyncio.sleep(0.001)
        return found

    def release_api(self) -> None:
        """For the next server, when this one has stopped."""
        self.api.state.dispatcher = None
        _spare_apis.append(self.api)

    def snapshot(self) -> tuple[int, list[str], int]:
        """What must stay as it is when a request is refused."""
        state = self.engine.state
        return state.revision, sorted(state.workloads), len(state.instances)


@contextmanager
def in_role(engine: Engine, role: Role) -> Iterator[None]:
    """An engine as it would be in another role, for as long as the block."""
    before, engine.machine.role = engine.machine.role, role
    try:
        yield
    finally:
        engine.machine.role = before


@asynccontextmanager
async def inprocess_server(
    store: Store | None = None, watch: Watch | None = None, history: History | None = None, **settings: Any
) -> AsyncIterator[InprocessServer]:
    """A server that runs as long as the block. A history is started and ended with it."""
    made = InprocessServer(
        store or MemoryStore(), Settings(**{"lease_ms": LEASE_MS, **settings}), watch or Watch(), history
    )
    if history is not None:
        history.start()
    await made.engine.open("roost")
    async with asyncio.TaskGroup() as group:
        group.create_task(made.engine.run())
        await made.until(lambda: made.engine.machine.steps)
        try:
            yield made
        finally:
            made.watch.close()
            made.engine.stop()
            await made.client.aclose()
            if history is not None:
                await history.close()
    made.release_api()


@asynccontextmanager
async def over_http(made: InprocessServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client over a real connection: streams come as they are written."""
    web = Web(made.door, grace_s=2.0)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with asyncio.TaskGroup() as group:
        group.create_task(web.serve(sockets=[listener]))
        await web.ready.wait()
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=DEADLINE_S
        ) as client:
            yield client
        web.leave()


class Events:
    """Server-sent events of one answer, one after the other."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.last_id = ""

    async def next(self, *, marks: bool = False) -> dict[str, str]:
        """The next event: id, event, data. Signs of life are skipped, and marks unless asked for."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(DEADLINE_S):
            async for line in self._lines:
                if line.startswith(":"):
                    continue
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                    continue
                self.last_id = fields.get("id", self.last_id)
                if "data" in fields or (marks and fields):
                    return fields
                fields = {}
        raise AssertionError("the stream has ended")

    async def ended(self) -> bool:
        """Whether nothing more comes."""
        async with asyncio.timeout(DEADLINE_S):
            return [line async for line in self._lines if line and not line.startswith((":", "id"))] == []


@asynccontextmanager
async def events(client: httpx.AsyncClient, path: str, last: str = "", **query: Any) -> AsyncIterator[Events]:
    """The events at a path, from the moment that the server has begun to tell them."""
    headers = {"last-event-id": last} if last else {}
    async with client.stream("GET", path, params=query, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


__all__ = [
    "Drop",
    "Events",
    "InprocessServer",
    "Played",
    "Run",
    "Stop",
    "Streams",
    "TOKEN",
    "events",
    "inprocess_server",
    "over_http",
]
