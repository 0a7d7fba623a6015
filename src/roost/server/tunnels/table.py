"""Tunnels as the leader knows them: what is wanted of which node, limits, and when to give up.

No clock and no I/O: tunnels.py drives it. Nothing of it is stored: a tunnel ends with its server.
"""

import asyncio
from collections.abc import Iterator

from roost.model.tunnels import TunnelEnd, TunnelOrder

TUNNELS_MAX = 1_000  # of all nodes; each holds half a megabyte at most
PER_NODE_MAX = 32
PER_PRINCIPAL_MAX = 32
JOINED_MS_MAX = 15_000  # until both sides are there
IDLE_MS_MAX = 3_600_000  # without a byte in either direction
OUTPUT_FRAMES_MAX = 4  # of 64 KiB; more waits where it comes from
INPUT_FRAMES_MAX = 64  # eight of them with input: a client that sends more does not keep to its window


class OpenTunnel:
    """One tunnel. Each side puts frames into a queue that the other side empties; None is the end of output."""

    def __init__(
        self, order: TunnelOrder, instance: str, node: str, principal: str, where: str, title: str, now_ms: int
    ) -> None:
        self.order = order
        self.instance = instance  # PROJECT/NAME.INDEX
        self.node = node
        self.principal = principal
        self.where = where
        self.title = title  # for the audit log
        self.begun_ms = self.active_ms = now_ms
        self.is_taken = False  # its node knows of it
        self.has_node = self.has_client = False
        self.to_node: asyncio.Queue[bytes] = asyncio.Queue(INPUT_FRAMES_MAX)
        self.to_client: asyncio.Queue[bytes | None] = asyncio.Queue(OUTPUT_FRAMES_MAX)
        self.bytes_in = self.bytes_out = 0
        self.end: TunnelEnd | None = None
        self.over = asyncio.Event()  # nothing more is passed on

    def finish(self, end: TunnelEnd) -> None:
        """The first end counts."""
        self.end = self.end or end

    def close(self, end: TunnelEnd) -> None:
        """Both sides leave."""
        self.finish(end)
        self.over.set()


class TunnelTable:
    def __init__(self) -> None:
        self._tunnels: dict[str, OpenTunnel] = {}

    def __iter__(self) -> Iterator[OpenTunnel]:
        return iter(list(self._tunnels.values()))

    def find(self, id: str) -> OpenTunnel | None:
        return self._tunnels.get(id)

    def refusal(self, node: str, principal: str) -> str:
        """Why no other tunnel may begin now; empty: it may."""
        tunnels = self._tunnels.values()
        if len(tunnels) >= TUNNELS_MAX:
            return f"{TUNNELS_MAX:,} tunnels are open"
        if sum(tunnel.node == node for tunnel in tunnels) >= PER_NODE_MAX:
            return f"node {node} has {PER_NODE_MAX} tunnels open"
        if sum(tunnel.principal == principal for tunnel in tunnels) >= PER_PRINCIPAL_MAX:
            return f"{principal} has {PER_PRINCIPAL_MAX} tunnels open"
        return ""

    def begin(self, tunnel: OpenTunnel) -> None:
        self._tunnels[tunnel.order.id] = tunnel

    def remove(self, tunnel: OpenTunnel) -> None:
        self._tunnels.pop(tunnel.order.id, None)

    def is_due(self, node: str) -> bool:
        """Whether a node is to ask which tunnels are wanted."""
        return any(tunnel.node == node and not tunnel.is_taken for tunnel in self._tunnels.values())

    def take(self, node: str) -> list[TunnelOrder]:
        """All that are wanted of a node, which asks."""
        found = [tunnel for tunnel in self._tunnels.values() if tunnel.node == node and not tunnel.is_taken]
        for tunnel in found:
            tunnel.is_taken = True
        return [tunnel.order for tunnel in found]

    def expired(self, now_ms: int) -> Iterator[tuple[OpenTunnel, TunnelEnd]]:
        for tunnel in self:
            node = tunnel.node
            if tunnel.begun_ms + JOINED_MS_MAX <= now_ms and not (tunnel.has_node and tunnel.has_client):
                lack = f"node {node} did not open it: it is not connected, or its release has no tunnels; try again"
                yield tunnel, TunnelEnd(error="its client did not come" if tunnel.has_node else lack, reason="lost")
            elif tunnel.active_ms + IDLE_MS_MAX <= now_ms:
                yield tunnel, TunnelEnd(error="nothing went through it for an hour", reason="idle")
