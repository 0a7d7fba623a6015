"""Tunnels into runs: begun for clients, taken by agents, and joined: frames of one side go to the other.

Each direction is a short queue. A client that does not read makes the run wait, through every hop; input has a window.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from roost.model.errors import Conflict, NoService, NotFound
from roost.model.records.instance import Instance
from roost.model.records.opaque import Audit
from roost.model.states import InstanceState
from roost.model.tunnels import BadFrame, FrameKind, TunnelEnd, TunnelOrder, end_in, ended, kind_of
from roost.server.auth.principal import Principal
from roost.server.engine.engine import Engine
from roost.server.history.service import History
from roost.server.tunnels.table import OpenTunnel, TunnelTable
from roost.server.waiting import cancel

LOOK_S = 0.5  # between looks at what is to be given up
DRAIN_S_MAX = 10.0  # for a client to read the rest when all else is over

Read = Callable[[], Awaitable[bytes | None]]  # the next frame of a side; None: it has left
Write = Callable[[bytes], Awaitable[None]]

LOST = TunnelEnd(error="the connection to the node broke", reason="lost")
LEFT = TunnelEnd(error="its client left", reason="left")
STOPPED = TunnelEnd(error="the server stops", reason="stopped")


class TunnelBroker:
    """The tunnels that this server knows. `wake`: make an agent ask for its tunnels."""

    def __init__(self, engine: Engine, history: History | None) -> None:
        self._engine = engine
        self._history = history
        self.wake: Callable[[str], None] = lambda node: None
        self.table = TunnelTable()

    async def run(self) -> None:
        """Give up what cannot become anything, until cancelled."""
        try:
            while True:
                for tunnel, end in self.table.expired(self._now()):
                    self._close(tunnel, end)
                await asyncio.sleep(LOOK_S)
        finally:
            for tunnel in self.table:
                self._close(tunnel, STOPPED)

    # for clients

    def begin(self, order: TunnelOrder, instance: Instance, principal: Principal, title: str) -> OpenTunnel:
        if instance.state is not InstanceState.RUNNING:
            message = f"{instance.key} is {instance.state}; there is a way into it only while it runs"
            facts = {"instance": instance.key, "state": instance.state.value}
            raise Conflict(message, code="not_running", params=facts)
        if refusal := self.table.refusal(instance.node, principal.name):
            raise NoService(f"{refusal}; try again when one has ended", code="too_many_tunnels")
        tunnel = OpenTunnel(order, instance.key, instance.node, principal.name, principal.where, title, self._now())
        self.table.begin(tunnel)
        self._note(tunnel, "open_tunnel", title)
        self.wake(tunnel.node)
        return tunnel

    async def serve_client(self, id: str, principal: str, read: Read, write: Write) -> None:
        """The client's side of a tunnel, until it is over. Raises NotFound, Conflict."""
        tunnel = self.table.find(id)
        if tunnel is None or tunnel.principal != principal:
            raise NotFound("there is no such tunnel, or it is over", params={"tunnel": id[:100]})
        if tunnel.has_client:
            raise Conflict("this tunnel has a client already")
        tunnel.has_client = True
        reading = asyncio.ensure_future(self._from_client(tunnel, read))
        writing = asyncio.ensure_future(self._to_client(tunnel, write))
        over = asyncio.ensure_future(tunnel.over.wait())
        try:
            await asyncio.wait((reading, writing, over), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() and not writing.done():
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_S_MAX):
                        await writing
        finally:
            await cancel(reading, writing, over)
            self._close(tunnel, LEFT)

    # for agents

    def take(self, node: str) -> list[TunnelOrder]:
        return self.table.take(node)

    def is_due(self, node: str) -> bool:
        return self.table.is_due(node)

    async def serve_node(self, node: str, id: str, read: Read, write: Write) -> None:
        """The node's side of a tunnel, until it is over."""
        tunnel = self.table.find(id)
        if tunnel is None or tunnel.node != node or tunnel.has_node:
            raise NotFound("there is no such tunnel, or it is over")
        tunnel.has_node = True
        tunnel.active_ms = self._now()
        reading = asyncio.ensure_future(self._from_node(tunnel, read))
        writing = asyncio.ensure_future(self._to_node(tunnel, write))
        over = asyncio.ensure_future(tunnel.over.wait())
        try:
            await asyncio.wait((reading, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(reading, writing, over)
            tunnel.finish(LOST)
            if not tunnel.has_client or tunnel.over.is_set():
                tunnel.over.set()
            elif tunnel.to_client.full():
                tunnel.over.set()  # its client gets what is there, and the end
            else:
                tunnel.to_client.put_nowait(None)

    # one direction

    async def _from_client(self, tunnel: OpenTunnel, read: Read) -> None:
        try:
            while (data := await read()) is not None:
                kind_of(data)
                tunnel.active_ms = self._now()
                tunnel.bytes_in += len(data) - 1
                tunnel.to_node.put_nowait(data)
        except BadFrame as error:
            tunnel.finish(TunnelEnd(error=str(error), reason="refused"))
        except asyncio.QueueFull:
            tunnel.finish(TunnelEnd(error="more input was sent than the run has taken", reason="refused"))

    async def _to_client(self, tunnel: OpenTunnel, write: Write) -> None:
        while True:
            data = await self._next(tunnel)
            if data is None:
                break
            await write(data)
        await write(ended(tunnel.end or LOST))

    async def _next(self, tunnel: OpenTunnel) -> bytes | None:
        """The next frame for the client. When all is over: what is still there."""
        if not tunnel.to_client.empty():
            return tunnel.to_client.get_nowait()
        if tunnel.over.is_set():
            return None
        getting = asyncio.ensure_future(tunnel.to_client.get())
        over = asyncio.ensure_future(tunnel.over.wait())
        try:
            await asyncio.wait((getting, over), return_when=asyncio.FIRST_COMPLETED)
            return getting.result() if getting.done() else None
        finally:
            await cancel(getting, over)

    async def _from_node(self, tunnel: OpenTunnel, read: Read) -> None:
        while (data := await read()) is not None:
            try:
                if kind_of(data) is FrameKind.ENDED:
                    tunnel.finish(end_in(data))
                    break
            except BadFrame as error:
                tunnel.finish(TunnelEnd(error=str(error), reason="lost"))
                break
            tunnel.active_ms = self._now()
            tunnel.bytes_out += len(data) - 1
            await tunnel.to_client.put(data)
        await tunnel.to_client.put(None)

    async def _to_node(self, tunnel: OpenTunnel, write: Write) -> None:
        while True:
            await write(await tunnel.to_node.get())

    # the end

    def _close(self, tunnel: OpenTunnel, end: TunnelEnd) -> None:
        tunnel.close(end)
        if self.table.find(tunnel.order.id) is tunnel:
            self.table.remove(tunnel)
            self._note(tunnel, "end_tunnel", f"{tunnel.title}: {self._outcome(tunnel)}")

    def _outcome(self, tunnel: OpenTunnel) -> str:
        end = tunnel.end or LEFT
        how = end.error or (f"signal {end.signal}" if end.signal is not None else f"exit code {end.code}")
        lasted_s = (self._now() - tunnel.begun_ms) / 1_000
        return f"{how} after {lasted_s:.1f} s, {tunnel.bytes_in:,} bytes in, {tunnel.bytes_out:,} bytes out"

    def _note(self, tunnel: OpenTunnel, what: str, detail: str) -> None:
        if self._history is not None:
            revision = self._engine.state.revision
            self._history.note(
                Audit(0, self._now(), tunnel.principal, tunnel.where, what, tunnel.instance, revision, detail, False)
            )

    def _now(self) -> int:
        return self._engine.clock.now_ms()
