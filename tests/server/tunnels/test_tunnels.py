"""Tunnels between their two sides: limits, what expires, order of the last frames, and input beyond the window."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from roost.model.errors import Conflict, NotFound
from roost.model.tunnels import FrameKind, TunnelEnd, TunnelOrder, end_in, ended, frame
from roost.server.auth.principal import ALL, Principal
from roost.server.tunnels.table import (
    IDLE_MS_MAX,
    INPUT_FRAMES_MAX,
    JOINED_MS_MAX,
    PER_NODE_MAX,
    PER_PRINCIPAL_MAX,
    OpenTunnel,
    TunnelTable,
)
from roost.server.tunnels.tunnels import TunnelBroker
from tests.server.inprocess_server import InprocessServer, inprocess_server

ME = Principal("token:me", "127.0.0.1", ALL)


def made(id: str, node: str = "n1", principal: str = "me", now_ms: int = 0) -> OpenTunnel:
    return OpenTunnel(TunnelOrder(id, 1), "default/job.0", node, principal, "", "command", now_ms)


def test_each_node_and_each_principal_has_a_limit() -> None:
    table = TunnelTable()
    for number in range(PER_NODE_MAX):
        assert table.refusal("n1", "me") == ""
        table.begin(made(str(number), principal=f"p{number}"))
    assert table.refusal("n1", "me") == f"node n1 has {PER_NODE_MAX} tunnels open"
    for number in range(PER_PRINCIPAL_MAX):
        assert table.refusal("n2", "me") == ""
        table.begin(made(f"n2-{number}", node=f"m{number}"))
    assert table.refusal("n2", "me") == f"me has {PER_PRINCIPAL_MAX} tunnels open"
    table.remove(table.find("n2-0") or made(""))
    assert table.refusal("n2", "me") == ""


def test_a_tunnel_is_taken_once_and_expires_without_its_sides_or_without_bytes() -> None:
    table, tunnel = TunnelTable(), made("a")
    table.begin(tunnel)
    assert table.is_due("n1") and not table.is_due("n2")
    assert [order.id for order in table.take("n1")] == ["a"]
    assert not table.is_due("n1") and table.take("n1") == []
    assert not list(table.expired(JOINED_MS_MAX - 1))
    assert [end.reason for _, end in table.expired(JOINED_MS_MAX)] == ["lost"]
    tunnel.has_node = tunnel.has_client = True
    assert not list(table.expired(IDLE_MS_MAX - 1))
    assert [end.reason for _, end in table.expired(IDLE_MS_MAX)] == ["idle"]


class Side:
    """One side of a tunnel, played by hand."""

    def __init__(self) -> None:
        self.sends: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.got: list[bytes] = []

    async def read(self) -> bytes | None:
        return await self.sends.get()

    async def write(self, data: bytes) -> None:
        self.got.append(data)


@pytest.fixture
async def broker() -> AsyncIterator[TunnelBroker]:
    async with inprocess_server() as server:
        yield await opened(server)


async def opened(server: InprocessServer) -> TunnelBroker:
    broker = TunnelBroker(server.engine, None)
    broker.table.begin(made("a", principal=ME.name, now_ms=server.engine.clock.now_ms()))
    return broker


async def test_the_rest_of_the_output_comes_before_the_end(broker: TunnelBroker) -> None:
    client, node = Side(), Side()
    for data in [*(frame(FrameKind.OUTPUT, bytes([item])) for item in range(20)), ended(TunnelEnd(code=3))]:
        node.sends.put_nowait(data)
    await asyncio.gather(
        broker.serve_node("n1", "a", node.read, node.write),
        broker.serve_client("a", ME.name, client.read, client.write),
    )
    assert client.got[:-1] == [frame(FrameKind.OUTPUT, bytes([item])) for item in range(20)]
    assert end_in(client.got[-1]) == TunnelEnd(code=3)
    assert broker.table.find("a") is None


async def test_a_client_that_ignores_its_window_is_refused(broker: TunnelBroker) -> None:
    client = Side()
    for _ in range(INPUT_FRAMES_MAX + 1):
        client.sends.put_nowait(frame(FrameKind.INPUT, b"x"))
    tunnel = broker.table.find("a")
    await broker.serve_client("a", ME.name, client.read, client.write)
    assert tunnel is not None and tunnel.end is not None and tunnel.end.reason == "refused"


async def test_only_its_principal_joins_a_tunnel_and_only_its_node_opens_it(broker: TunnelBroker) -> None:
    side = Side()
    with pytest.raises(NotFound):
        await broker.serve_client("a", "token:other", side.read, side.write)
    with pytest.raises(NotFound):
        await broker.serve_node("n2", "a", side.read, side.write)
    joined = asyncio.ensure_future(broker.serve_client("a", ME.name, side.read, side.write))
    await asyncio.sleep(0)
    with pytest.raises(Conflict):
        await broker.serve_client("a", ME.name, side.read, side.write)
    side.sends.put_nowait(None)
    await joined
    assert side.got == []
