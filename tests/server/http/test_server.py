"""The HTTP server: bounded heads, slow senders cut off, everything else served."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from roost.server.auth.shares import Shares
from roost.server.http import server as http_server
from roost.server.http.api import bodies
from roost.server.http.api.answers import STREAMS_MAX
from roost.server.http.connections import Connections
from tests.server.inprocess_server import DEADLINE_S, TOKEN, InprocessServer, inprocess_server, over_http

HEAD = f"Host: roost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()


class Line:
    """A connection, spoken to in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def transmit(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear(self) -> tuple[int, bytes]:
        """One answer: its status and its body."""
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            return int(head.split()[1]), await self.reader.readexactly(int(fields[b"content-length"]))

    async def is_closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read(65_536) == b""
            except ConnectionError:
                return True


@asynccontextmanager
async def line() -> AsyncIterator[tuple[Line, InprocessServer]]:
    async with inprocess_server() as made, over_http(made) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        try:
            yield Line(reader, writer), made
        finally:
            writer.close()


async def test_a_connection_serves_many_requests_whole_or_in_pieces() -> None:
    async with line() as (connection, _):
        request = b"GET /v1/status HTTP/1.1\r\n" + HEAD + b"\r\n"
        for _ in range(3):
            await connection.transmit(request)
            assert (await connection.hear())[0] == 200
        for byte in request:
            await connection.transmit(bytes([byte]))
        assert (await connection.hear())[0] == 200
        await connection.transmit(request * 3)
        assert [(await connection.hear())[0] for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("piece", [b"x" * 1_000, b"X-Many: y\r\n" * 100], ids=["one header", "many headers"])
async def test_a_head_without_end_is_cut_off(piece: bytes) -> None:
    async with line() as (connection, _):
        await connection.transmit(b"GET /livez HTTP/1.1\r\n" + HEAD + b"X-Long: ")
        sent = 0
        try:
            while sent < 10_000_000:
                await connection.transmit(piece)
                await asyncio.sleep(0)
                sent += len(piece)
        except ConnectionError:
            pass
        assert sent < 1_000_000


async def test_an_address_without_end_is_cut_off() -> None:
    async with line() as (connection, _):
        await connection.transmit(b"GET /")
        with pytest.raises(ConnectionError):
            for _ in range(1_000):
                await connection.transmit(b"x" * 10_000)
                await asyncio.sleep(0)


@pytest.mark.parametrize("text", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"\r\n\r\n"])
async def test_a_client_that_never_finishes_a_head_is_cut_off(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_S_MAX", 0.1)
    async with line() as (connection, _):
        await connection.transmit(text)
        assert await connection.is_closed()


async def test_a_client_that_never_finishes_a_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S_MAX", 0.1)
    async with line() as (connection, made):
        before = made.snapshot()
        await connection.transmit(b"POST /v1/workloads HTTP/1.1\r\n" + HEAD + b"Content-Length: 100\r\n\r\n{")
        status, body = await connection.hear()
        assert status == 400 and b"not there within" in body
        assert made.snapshot() == before


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async with line() as (connection, _):
        await connection.transmit(b"POST /v1/workloads HTTP/1.1\r\n" + HEAD + b"Content-Length: 99999999999\r\n\r\n")
        assert (await connection.hear())[0] == 413


@pytest.mark.parametrize(
    "text", [b"\x16\x03\x01\x02\x00", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /a b HTTP/1.1\r\n\r\n"]
)
async def test_what_is_not_http_is_refused(text: bytes) -> None:
    async with line() as (connection, made):
        await connection.transmit(text)
        assert (await connection.hear())[0] == 400
        assert await connection.is_closed()
        assert made.engine.ready


async def test_a_sender_that_goes_away_in_the_middle_changes_nothing() -> None:
    async with line() as (connection, made):
        before = made.snapshot()
        await connection.transmit(b"POST /v1/workloads HTTP/1.1\r\n" + HEAD + b'Content-Length: 100\r\n\r\n{"name": ')
        connection.writer.transport.abort()
        await made.submit("other")
        assert made.snapshot()[1] == [*before[1], "default/other"]


async def test_a_client_that_goes_away_before_its_answer_leaves_the_engine_whole() -> None:
    async with line() as (connection, made):
        body = b'{"name": "left", "command": "true"}'
        head = b"POST /v1/workloads HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
        await connection.transmit(head + body)
        connection.writer.transport.abort()
        await made.until(lambda: "default/left" in made.engine.state.workloads)
        await made.submit("next")
        assert made.engine._waiting == {}


def test_a_port_that_is_taken_is_an_error() -> None:
    taken = http_server.listen("127.0.0.1", 0)
    with pytest.raises(OSError):
        http_server.listen("127.0.0.1", taken.getsockname()[1])
    taken.close()


async def test_connections_without_a_token_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "Connections", lambda: Connections(4))
    monkeypatch.setattr(http_server, "HEAD_S_MAX", 10 * DEADLINE_S)
    request = b"GET /v1/status HTTP/1.1\r\n" + HEAD + b"\r\n"
    async with line() as (known, _), asyncio.timeout(DEADLINE_S):
        await known.transmit(request)
        assert (await known.hear())[0] == 200
        port = known.writer.get_extra_info("peername")[1]
        strangers = [Line(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(6)]
        assert await strangers[0].is_closed()
        new = Line(*await asyncio.open_connection("127.0.0.1", port))
        for connection in (new, known):
            await connection.transmit(request)
            assert (await connection.hear())[0] == 200
        for connection in (*strangers, new):
            connection.writer.close()


async def test_one_viewer_does_not_take_all_streams() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        made.api.state["streams"] = Shares(4, "streams")
        fields = {"name": "reader", "role": "viewer", "projects": ["*"]}
        token = (await made.post("/v1/tokens", fields, 201))["token"]
        viewer = {"authorization": f"Bearer {token}"}
        try:
            async with client.stream("GET", "/v1/changes", headers=viewer) as first:
                assert first.status_code == 200
                await anext(first.aiter_bytes())  # it has begun
                refused = await client.get("/v1/changes", headers=viewer)
                assert (refused.status_code, refused.json()["code"]) == (503, "busy")
                async with client.stream("GET", "/v1/changes") as other:
                    assert other.status_code == 200
            await made.until(lambda: not made.api.state["streams"])
        finally:
            made.api.state["streams"] = Shares(STREAMS_MAX, "streams")
