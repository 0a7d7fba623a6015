"""The server as a whole: put together, started, and stopped in order."""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import NamedTuple

from roost.model.errors import Invalid
from roost.ports.blobs import Blobs
from roost.ports.store import Store, StoreError
from roost.server import say
from roost.server.config import ServerConfig, check_config
from roost.server.engine import Clock, Engine
from roost.server.gateway import Gateway
from roost.server.journal import Journal
from roost.server.logs import LogHub
from roost.server.metrics import Census, Metrics
from roost.server.perform import Perform
from roost.server.plugins import load_plugins
from roost.server.watch import Watch
from roost.server.web import Web, listen

# Requests under way are decided within a commit; streams end when told. What takes longer is a stuck disk or client.
GRACE_S = 5.0
AGENTS_GRACE_S = 1.0
EXIT_AT_ONCE = 130

OnReady = Callable[[int, int], None]

log = say.logger("server")


class CannotStart(Exception):
    """Why the server does not run, in one sentence for its operator."""


class Parts(NamedTuple):
    """What a server is made of."""

    engine: Engine
    gateway: Gateway
    watch: Watch
    web: Web


def run(config: ServerConfig, on_ready: OnReady | None = None) -> int:
    """Serve until a signal comes; the exit code. What keeps it from starting is told in one line."""
    import uvloop

    try:
        uvloop.run(serve(config, on_ready))
    except CannotStart as error:
        print(f"roost server: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(config: ServerConfig, on_ready: OnReady | None = None, stopping: asyncio.Event | None = None) -> None:
    """Serve until a signal comes or `stopping` is set. Raises CannotStart."""
    try:
        load_plugins()
        check_config(config)
    except Invalid as error:
        raise CannotStart(str(error)) from None
    say.speak(config.log_level, config.log_form)
    stopping = stopping or asyncio.Event()
    async with AsyncExitStack() as stack:
        listener = _listen(config)
        stack.callback(listener.close)
        store, blobs = _open_stores(config)
        stack.push_async_callback(store.close)
        stack.callback(blobs.close)
        journal = _open_journal(config)
        if journal is not None:
            stack.callback(journal.close)
        parts = _assemble(config, store, LogHub(blobs), journal)
        await _load(parts.engine)
        agents_port = await _open_gateway(config, parts.gateway)
        # Comes after the engine has ended: streams that end before it would look broken, and work would be moved.
        stack.push_async_callback(parts.gateway.stop, AGENTS_GRACE_S)
        # What was imported and loaded stays: it need not be looked at again whenever garbage is sought.
        gc.freeze()
        with _signals(stopping):
            await _live(parts, listener, agents_port, on_ready, stopping)
    log.info("stopped", revision=parts.engine.state.revision)


async def _live(
    parts: Parts, listener: socket.socket, agents_port: int, on_ready: OnReady | None, stopping: asyncio.Event
) -> None:
    """Run, and end in order: streams of changes, requests, and then the last step."""
    async with asyncio.TaskGroup() as group:
        group.create_task(parts.engine.run())
        serving = group.create_task(parts.web.serve(sockets=[listener]))
        await parts.web.ready.wait()
        port = listener.getsockname()[1]
        log.info("ready", api_port=port, agents_port=agents_port, revision=parts.engine.state.revision)
        if on_ready is not None:
            on_ready(port, agents_port)
        await stopping.wait()
        log.info("stopping")
        parts.watch.close()
        parts.web.leave()
        await serving
        parts.engine.stop()


def _assemble(config: ServerConfig, store: Store, logs: LogHub, journal: Journal | None) -> Parts:
    from roost.server.api.doors import Doors
    from roost.server.api.routes import make_api
    from roost.server.auth import Door

    watch = Watch()
    perform = Perform(watch, logs)
    engine = Engine(store, config.settings(), perform, Clock(), journal)
    gateway = Gateway(engine, logs, config.agent_token)
    perform.attach(gateway)
    census = Census()
    api = make_api(Doors(engine, watch, logs, census, Metrics(engine, perform, census)))
    return Parts(engine, gateway, watch, Web(Door(api, config.admin_token), GRACE_S))


def _open_stores(config: ServerConfig) -> tuple[Store, Blobs]:
    if config.store == "memory":
        from roost.blobs.memory import MemoryBlobs
        from roost.stores.memory import MemoryStore

        return MemoryStore(), MemoryBlobs()
    from roost.blobs.files import FileBlobs
    from roost.stores.sqlite import SqliteStore

    try:
        return SqliteStore(config.data), FileBlobs(config.data / "logs")
    except StoreError as error:
        raise CannotStart(str(error)) from None


def _open_journal(config: ServerConfig) -> Journal | None:
    """A folder that cannot be written is told now; what goes wrong later is no reason to stop."""
    if config.record is None:
        return None
    try:
        config.record.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CannotStart(f"cannot record into {config.record}: {error.strerror or error}") from None
    if not os.access(config.record, os.W_OK | os.X_OK):
        raise CannotStart(f"cannot record into {config.record}: it cannot be written")
    return Journal(config.record, config.record_max, config.record_total)


async def _load(engine: Engine) -> None:
    try:
        await engine.open(f"{socket.gethostname()}:{os.getpid()}")
    except StoreError as error:
        raise CannotStart(str(error)) from None


def _listen(config: ServerConfig) -> socket.socket:
    try:
        return listen(config.host, config.port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotStart(f"cannot listen on {config.host}:{config.port}: {reason}; choose another --port") from None


async def _open_gateway(config: ServerConfig, gateway: Gateway) -> int:
    try:
        return await gateway.start(config.agents_host, config.agents_port)
    except OSError as error:
        raise CannotStart(f"{error}; choose another --agents-port") from None


@contextmanager
def _signals(stopping: asyncio.Event) -> Iterator[None]:
    """TERM and INT stop in order, a second one at once."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():
            os._exit(EXIT_AT_ONCE)
        stopping.set()

    try:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, stop)
    except (RuntimeError, ValueError):  # not the main thread: whoever started us stops us
        yield
        return
    try:
        yield
    finally:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
