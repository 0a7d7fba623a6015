"""The server as a whole: put together, started, and stopped in order."""

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from roost.allocation import keep_freed_memory
from roost.blobs.factory import Opened, open_place, read_place
from roost.blobs.history_segments import SegmentPages
from roost.blobs.log_files import FileLogs
from roost.model.errors import Invalid
from roost.ports.objects import Objects
from roost.ports.store import SharedStore, Store, StoreError
from roost.server.agents.file_transfer import FileTransfer
from roost.server.agents.gateway import Gateway
from roost.server.auth.middleware import Auth, AuthMiddleware
from roost.server.auth.oidc import Issuer
from roost.server.cluster.forwarding import Forwarder, answer
from roost.server.cluster.peers import ClusterMember
from roost.server.config import ServerConfig, check_config
from roost.server.controller.service import Controllers
from roost.server.engine.engine import Clock, Engine
from roost.server.engine.executor import Executor
from roost.server.engine.fork_server import ForkServer
from roost.server.engine.questions import Questions
from roost.server.engine.recording import Journal
from roost.server.feed.change_log import Watch
from roost.server.files.collection import Collection, going_in
from roost.server.files.copying import Copying
from roost.server.files.keys import BlobKeys
from roost.server.files.store import Files
from roost.server.history.service import History, SharedHistory
from roost.server.http.api.routes import make_api
from roost.server.http.server import Web, listen
from roost.server.http.tunnels import TunnelApp
from roost.server.logs.ends import end_to_seal
from roost.server.logs.hub import LogHub
from roost.server.logs.machine import LogEnd
from roost.server.observability import logging
from roost.server.observability.metrics import Metrics
from roost.server.operations.context import Context
from roost.server.operations.dispatch import Dispatcher
from roost.server.operations.work.named_files import is_named_in, named_in_state
from roost.server.pki.authority import AuthorityUnavailable, identity_of
from roost.server.pki.bootstrap import Enrol, agents_addresses, choose_port, controller_address, secure
from roost.server.pki.enrolment import Joining
from roost.server.pki.secrets import Secrets
from roost.server.pki.tls import ServerTls
from roost.server.plugins import load_plugins
from roost.server.polling import polling
from roost.server.tunnels.tunnels import TunnelBroker
from roost.server.waiting import unless
from roost.server.webhooks.destinations import Destinations
from roost.server.webhooks.dispatcher import Hooks
from roost.stores.factory import open_history, open_store
from roost.stores.memory import MemoryStore

# Requests under way are decided within a commit; streams end at once. What takes longer is a stuck disk or client.
GRACE_S = 5.0
AGENTS_GRACE_S = 1.0
EXIT_AT_ONCE = 130
# The default, but a full collection comes after 100 of the middle ones, not 10. It takes 30 ms, and readers of long
# lists caused two in three seconds. Records are not part of cycles, so there is little to find.
COLLECT = (700, 10, 100)

# Between two appends of a busy leader to a shared history: a row costs less than an object.
PAGES_EVERY_S, SEGMENTS_EVERY_S = 0.1, 1.0

OnReady = Callable[[int, int], None]

log = logging.logger("server")


class CannotStart(Exception):
    """Why the server does not run, in one sentence for its operator."""


class Parts(NamedTuple):
    engine: Engine
    logs: LogHub
    gateway: Gateway
    watch: Watch
    web: Web
    joining: Joining
    secrets: Secrets
    history: History | None
    team: ClusterMember | None
    hooks: Hooks
    controllers: Controllers | None
    collection: Collection
    copying: Copying
    blob_keys: BlobKeys
    tunnels: TunnelBroker


def run(config: ServerConfig, on_ready: OnReady | None = None) -> int:
    """Serve until a signal comes; return the exit code. A failure to start is one line on stderr."""
    import uvloop

    keep_freed_memory()
    try:
        uvloop.run(serve(config, on_ready))
    except CannotStart as error:
        print(f"roost server: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(
    config: ServerConfig, on_ready: OnReady | None = None, stopping: asyncio.Event | None = None,
    enrol: Enrol | None = None,
) -> None:  # fmt: skip
    """Serve until a signal comes; with `stopping`, until its owner sets it.

    `enrol` gives local nodes certificates before the first call. Raises CannotStart.
    """
    with _starting(Invalid):
        load_plugins()
        check_config(config)
    logging.configure(config.log_level, config.log_format)
    if config.loses_files:
        log.warning("files of workloads are on this server only; give all servers the same --blobs")
    stops = {}
    if stopping is None:
        stopping = asyncio.Event()
        stops = dict.fromkeys((signal.SIGTERM, signal.SIGINT), partial(_stop, stopping))
    async with AsyncExitStack() as stack:
        forks = ForkServer()  # while this process is small, and gRPC has no threads
        stack.callback(forks.close)
        stack.enter_context(polling())
        listener = _listen(config)
        stack.callback(listener.close)
        store = _open_store(config)
        stack.push_async_callback(store.close)
        tails = FileLogs(config.data / "logs")
        stack.callback(tails.close)
        journal = _open_journal(config)
        if journal is not None:
            stack.callback(journal.close)
        place = open_place(config.blobs, config.data)
        history = _open_history(config, store, place.objects)
        if history is not None:
            stack.push_async_callback(history.close)
        config = choose_port(config, listener.getsockname()[1])
        logs = LogHub(tails, place.objects, size_max=config.log_limit)
        stack.callback(logs.close)
        parts = _assemble(config, listener.getsockname()[1], store, place, logs, journal, history, forks)
        if parts.team is not None:
            stack.push_async_callback(parts.team.close)
        with _starting(StoreError):
            await parts.engine.open(f"{socket.gethostname()}:{os.getpid()}")
        # Comes after the engine has ended: streams that end before it would look broken, and work would be moved.
        stack.push_async_callback(parts.gateway.stop, AGENTS_GRACE_S)
        if parts.controllers is not None:
            stack.push_async_callback(parts.controllers.stop, AGENTS_GRACE_S)
        deciding = asyncio.ensure_future(parts.engine.run())
        stack.push_async_callback(_end_engine, parts.engine, deciding)
        stack.push_async_callback(parts.hooks.close)
        stack.enter_context(_handling(stops))
        opened = await unless(stopping, _open_gateway(config, parts, listener.getsockname()[1], enrol))
        # What was imported and loaded stays: it need not be looked at again whenever garbage is sought.
        gc.freeze()
        gc.set_threshold(*COLLECT)
        if opened is not None:
            operators = opened[0].operators
            reload = {signal.SIGHUP: partial(operators.refresh, always=True)} if operators is not None else {}
            stack.enter_context(_handling(reload))
            await _live(parts, listener, *opened, deciding, on_ready, stopping)
    log.info("stopped", revision=parts.engine.state.revision)


async def _live(
    parts: Parts, listener: socket.socket, transport: ServerTls, agents_port: int, deciding: "asyncio.Future[None]",
    on_ready: OnReady | None, stopping: asyncio.Event,
) -> None:  # fmt: skip
    """Run, and end in order: streams of changes, requests, and then the last step."""
    async with asyncio.TaskGroup() as group:
        tasks = parts.engine.tasks
        group.create_task(tasks.need("engine", lambda: deciding, stopping.is_set))
        watching = group.create_task(tasks.keep("watchdog", parts.engine.watchdog.run))
        renewing = group.create_task(tasks.keep("certificates", transport.run))
        hooking = group.create_task(tasks.keep("webhooks", parts.hooks.run))
        collecting = group.create_task(tasks.keep("files", parts.collection.run))
        copying = group.create_task(tasks.keep("copies", parts.copying.run))
        tunnelling = group.create_task(tasks.keep("tunnels", parts.tunnels.run))
        keys = group.create_task(tasks.keep("blob keys", parts.blob_keys.run))
        sealing = group.create_task(tasks.keep("logs", partial(parts.logs.run, partial(_end_of, parts.engine))))
        serve_api = partial(parts.web.serve, sockets=[listener])
        serving = group.create_task(tasks.need("api", serve_api, stopping.is_set))
        await parts.web.ready.wait()
        port = listener.getsockname()[1]
        log.info("ready", api_port=port, agents_port=agents_port, revision=parts.engine.state.revision)
        if on_ready is not None:
            on_ready(port, agents_port)
        await stopping.wait()
        renewing.cancel()
        tunnelling.cancel()
        log.info("stopping")
        parts.watch.close()
        if parts.history is not None:
            parts.history.leave()
        parts.web.leave()
        await serving
        if parts.controllers is not None:
            await parts.controllers.stop(AGENTS_GRACE_S)
        hooking.cancel()
        watching.cancel()
        sealing.cancel()
        collecting.cancel()
        copying.cancel()
        keys.cancel()
        await parts.hooks.leave()
        parts.engine.stop()


def _assemble(
    config: ServerConfig, api_port: int, store: Store, place: Opened, logs: LogHub, journal: Journal | None,
    history: History | None, forks: ForkServer,
) -> Parts:  # fmt: skip
    watch = Watch()
    perform = Executor(watch, logs, history)
    clock = Clock()
    team = None
    if config.is_shared:
        assert isinstance(store, SharedStore)
        team = ClusterMember(store, config, api_port, clock.now_ms)
    engine = Engine(store, config.settings(), perform, clock, journal, team.leadership if team else None)
    secrets = Secrets(engine)
    blob_keys = BlobKeys(engine, place.bucket)
    files = Files(
        place.blobs, clock.now_ms, lambda: engine.machine.epoch, config.blobs_grace_ms,
        lambda project: going_in(engine.state, project),
        lambda project, named: is_named_in(engine.state, project, named),
    )  # fmt: skip
    reading = Questions(engine, forks.start)
    copying = Copying(engine, files, reading)
    tunnels = TunnelBroker(engine, history)
    gateway = Gateway(engine, logs, secrets, FileTransfer(engine, files, reading, copying), tunnels)
    perform.streams = gateway
    if history is not None and history.shared is not None:
        history.shared.epoch = engine.sure_epoch
    issuer = None
    if config.oidc_issuer:
        issuer = Issuer(config.oidc_issuer, config.oidc_client_id, config.oidc_claim, clock.now_ms)
    auth = Auth(engine, config.admin_token, issuer)
    joining = Joining(engine)
    peers = team.begin(engine, logs) if team is not None else None
    metrics = Metrics(engine, perform, files)
    destinations = Destinations(config.webhook_allow)
    hooks = perform.hooks = Hooks(engine, config.hook_commands(), destinations=destinations)
    context = Context(
        engine, watch, logs, perform.census, metrics, auth, joining, secrets, Questions(engine),
        reading, hooks, files, copying, blob_keys, tunnels, history, peers,
        controller_address(config), config.encrypts(config.controller_host),
    )  # fmt: skip
    if peers is not None:
        peers.answer = partial(answer, context)
        peers.tunnel_client = tunnels.serve_client
    forwarder = Forwarder(engine, peers) if peers is not None else None
    dispatcher = Dispatcher(context, forwarder)
    controllers = Controllers(dispatcher) if config.controllers else None
    web = Web(AuthMiddleware(TunnelApp(make_api(dispatcher), tunnels, engine, forwarder), auth), GRACE_S)
    collection = Collection(engine, files, logs, place.objects, named_in_state, identity_of)
    return Parts(
        engine, logs, gateway, watch, web, joining, secrets, history, team, hooks, controllers, collection, copying,
        blob_keys, tunnels,
    )  # fmt: skip


def _end_of(engine: Engine, name: str) -> LogEnd | None:
    return end_to_seal(engine.state, name)


def _open_store(config: ServerConfig) -> Store:
    if config.store == "memory":
        return MemoryStore()
    with _starting(StoreError):
        return open_store(config.store if config.is_shared else str(config.data))


def _open_journal(config: ServerConfig) -> Journal | None:
    """A folder that cannot be written is an error at the start; later failures do not stop the server."""
    folder = config.record_decisions
    if folder is None:
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        raise CannotStart(f"cannot record into {folder}: {error.strerror or error}") from None
    return Journal(folder, config.record_max, config.record_total)


def _open_history(config: ServerConfig, store: Store, objects: Objects) -> History | None:
    """Its writer opens the file: a failure is logged, and the server starts."""
    if not config.keeps_history:
        return None
    shared = None
    if config.is_shared and isinstance(store, SharedStore):
        pages = open_history(config.store)
        if pages is not None:
            shared = SharedHistory(pages, "the store", store, PAGES_EVERY_S)
        elif config.blobs:
            shared = SharedHistory(
                SegmentPages(objects), f"blobs at {read_place(config.blobs)}", store, SEGMENTS_EVERY_S
            )
    history = History(
        config.data, config.settings(), retention_ms=config.history_retention_ms, bytes_max=config.history_max,
        shared=shared, is_apart=config.is_shared and shared is None,
    )  # fmt: skip
    if config.is_shared and shared is None:
        log.warning("each server has a history of its own; give all servers the same --blobs")
    history.start()
    return history


def _listen(config: ServerConfig) -> socket.socket:
    try:
        return listen(config.host, config.port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotStart(
            f"cannot listen on {config.host}:{config.port}: {reason}; choose another --listen address"
        ) from None


async def _open_gateway(
    config: ServerConfig, parts: Parts, api_port: int, enrol: Enrol | None
) -> tuple[ServerTls, int]:
    with _starting(AuthorityUnavailable, Invalid), _starting(OSError, hint="; choose another --agents-listen address"):
        secured = await secure(config, parts.engine, parts.joining, api_port)
        parts.secrets.seal = parts.hooks.seal = parts.blob_keys.seal = secured.seal
        parts.blob_keys.apply()
        api = secured.transport.api
        parts.web.tls = api.context if config.encrypts(config.host) else None
        if parts.team is not None:
            parts.team.transport = secured.transport
            secured.transport.renewed = parts.team.peers.renew_channels if parts.team.peers is not None else None
        if enrol is not None:
            await enrol(secured.certificates)
        credentials = secured.transport.server.grpc_credentials(secured.certificates.authority.certificate)
        port = await parts.gateway.start(
            config.agents_host, config.agents_port, secured.certificates, credentials, parts.team
        )  # fmt: skip
    if parts.controllers is not None and config.controller_listen is not None:
        with _starting(OSError, hint="; choose another --controller-listen"):
            encryption = api.grpc_credentials() if config.encrypts(config.controller_host) else None
            await parts.controllers.start(*config.controller_listen, encryption)
    addresses, team = agents_addresses(config, port), parts.team
    secured.certificates.servers = lambda: tuple(dict.fromkeys((*addresses, *(team.addresses if team else ()))))
    if team is not None:
        parts.joining.others = lambda: team.apis
    return secured.transport, port


async def _end_engine(engine: Engine, deciding: "asyncio.Future[None]") -> None:
    engine.stop()
    await asyncio.wait((deciding,))


@contextmanager
def _starting(*errors: type[Exception], hint: str = "") -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise CannotStart(f"{error}{hint}") from None


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """Handle signals in the main thread. In another one, its owner stops the server."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])


def _stop(stopping: asyncio.Event) -> None:
    """Stop in order; at once when asked for the second time."""
    if stopping.is_set():
        os._exit(EXIT_AT_ONCE)
    stopping.set()
