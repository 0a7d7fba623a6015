"""Tricks with HTTP: requests hidden in others, heads and bodies without end, readers that never read.

All of them are refused or cut off, reported in one line with the address, and change nothing.
"""

import asyncio
import ssl
import tempfile
import time
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from roost.server.http import server as http_server
from roost.server.http.api import bodies
from tests.certified import authority
from tests.security.callers import quiet_server
from tests.security.raw_http import HEAD, HIDDEN, Port, everything, port_of
from tests.server.inprocess_server import TOKEN, InprocessServer

GET = b"GET /livez HTTP/1.1\r\n" + HEAD
POST = b"POST /v1/workloads HTTP/1.1\r\n" + HEAD
SIZE = b"Content-Length: %d\r\n" % len(HIDDEN)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SOON_S = 0.2
LOG_BYTES, PIECE_BYTES = 8 << 20, 64 << 10

SMUGGLED = {
    "two lengths": GET + b"Content-Length: 0\r\n" + SIZE + b"\r\n" + HIDDEN,
    "a list of lengths": GET + b"Content-Length: 0, %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "a length and chunks": POST + SIZE + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN,
    "chunks and a length": POST + CHUNKED + SIZE + b"\r\n0\r\n\r\n" + HIDDEN,
    "a length with a sign": POST + b"Content-Length: +0\r\n\r\n" + HIDDEN,
    "a length below zero": POST + b"Content-Length: -1\r\n\r\n" + HIDDEN,
    "a length in hexadecimal": POST + b"Content-Length: 0x0\r\n\r\n" + HIDDEN,
    "a length too long for a number": POST + b"Content-Length: 18446744073709551616\r\n\r\n" + HIDDEN,
    "a space before the colon": POST + b"Content-Length : 0\r\n\r\n" + HIDDEN,
    "a space before the name": POST + b" Content-Length: 0\r\n\r\n" + HIDDEN,
    "a folded line": GET + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "an unknown encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "chunked, but not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a chunk too large for a number": POST + CHUNKED + b"\r\n11111111111111110\r\n" + HIDDEN,
    "a chunk below zero": POST + CHUNKED + b"\r\n-1\r\n" + HIDDEN,
    "a chunk without its end": POST + CHUNKED + b"\r\n1\r\n{XX0\r\n\r\n" + HIDDEN,
    "a NUL in a name": GET + b"X-\x00: y\r\n\r\n" + HIDDEN,
    "a NUL in a value": GET + b"X: \x00y\r\n\r\n" + HIDDEN,
    "a bare CR": GET + b"X: y\rContent-Length: 5\r\n\r\n" + HIDDEN,
    "no colon": GET + b"nonsense\r\n\r\n" + HIDDEN,
    "HTTP/0.9": b"GET /livez\r\n\r\n" + HIDDEN,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "a tunnel": b"CONNECT roost:80 HTTP/1.1\r\n" + HEAD + b"\r\n" + HIDDEN,
    "an authority": b"GET roost:80 HTTP/1.1\r\n" + HEAD + b"\r\n" + HIDDEN,
    "everything": b"GET * HTTP/1.1\r\n" + HEAD + b"\r\n" + HIDDEN,
    "an address without a path": b"GET http://roost HTTP/1.1\r\n" + HEAD + b"\r\n" + HIDDEN,
    "garbage after a request": POST + b"Content-Length: 2\r\n\r\n{}" + b"\x00\xff garbage\r\n\r\n" + HIDDEN,
    "TLS where there is none": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + HIDDEN,
}


@pytest.fixture
async def made() -> AsyncIterator[InprocessServer]:
    async with quiet_server() as server:
        yield server


@pytest.fixture
async def port(made: InprocessServer) -> AsyncIterator[Port]:
    async with port_of(made) as found:
        yield found


@pytest.mark.parametrize("text", SMUGGLED.values(), ids=SMUGGLED)
async def test_what_can_be_read_in_two_ways_is_refused(made: InprocessServer, port: Port, text: bytes) -> None:
    before = made.snapshot()
    with capture_logs() as answer:
        async with port.line() as line:
            await line.transmit(text)
            received = await everything(line)
    assert received.count(b"HTTP/1.1 ") <= 2 and received.rfind(b"HTTP/1.1 400") == received.rfind(b"HTTP/1.1 ")
    refused = [item for item in answer if item["event"] == "request refused"]
    assert [item["where"] for item in refused] == ["127.0.0.1"] and TOKEN not in str(answer)
    assert made.snapshot() == before


@pytest.mark.parametrize(
    "target", ["http://elsewhere/v1/status", "https://roost:1/v1/status?x", "http://u:p@h/v1/status"]
)
async def test_a_whole_address_opens_no_other_door(port: Port, target: str) -> None:
    async with port.line() as line:
        await line.transmit(f"GET {target} HTTP/1.1\r\nHost: roost\r\n\r\n".encode())
        assert (await line.hear())[0] == 401


@pytest.mark.parametrize(
    "path",
    ["/livez/../v1/nodes", "/livez/..%2fv1/nodes", "/livez%2f..%2fv1%2fnodes", "//livez", "/livez/", "/livez;/v1/nodes",
     "/livez%00", "/LIVEZ", "/v1/join/../tokens", "/v1/login%2f..%2ftokens", "/./v1/nodes", "/v1//nodes", "/%2e%2e/etc",
     "/v1/join%3f", "/%ff", "/v1/l%6fgin/x", "/schema/openapi.json", "/schema/../livez"],
)  # fmt: skip
async def test_no_spelling_of_an_open_path_leads_behind_it(port: Port, path: str) -> None:
    async with port.line() as line:
        await line.transmit(f"GET {path} HTTP/1.1\r\nHost: roost\r\n\r\n".encode())
        assert (await line.hear())[0] == 401


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "HEAD", "PROPFIND"])
async def test_an_open_path_takes_no_other_method(made: InprocessServer, port: Port, method: str) -> None:
    before = made.snapshot()
    async with port.line() as line:
        await line.transmit(f"{method} /livez HTTP/1.1\r\nHost: roost\r\nConnection: close\r\n\r\n".encode())
        status = int((await everything(line)).split()[1])
    assert status == 200 if method == "GET" else status in (400, 405)
    assert made.snapshot() == before


@pytest.mark.parametrize("size", [http_server.HEAD_BYTES_MAX + 1, 4 * http_server.HEAD_BYTES_MAX])
async def test_a_head_that_is_too_large_is_refused_also_when_it_comes_whole(port: Port, size: int) -> None:
    async with port.line() as line:
        await line.transmit(GET + b"X: " + b"y" * size + b"\r\n\r\n")
        assert (await everything(line)).startswith(b"HTTP/1.1 400")


# --- without end ------------------------------------------------------------------------------------------------------


async def sent_until_cut_off(port: Port, begin: bytes, piece: bytes, most: int = 20_000_000) -> int:
    """How many bytes a caller can send that sends the same piece again and again."""
    sent = 0
    async with port.line() as line:
        reading = asyncio.ensure_future(everything(line))
        await line.transmit(begin)
        try:
            while sent < most and not reading.done():
                await line.transmit(piece)
                await asyncio.sleep(0)
                sent += len(piece)
        except ConnectionError:
            pass
        reading.cancel()
    return sent


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (POST + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n", b"X-Many: yes\r\n" * 1_000),
        (POST + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nX-Long: ", b"y" * 16_000),
        (POST + CHUNKED + b"\r\n2;x=", b"y" * 16_000),
        (GET + b"\r\n", b"\r\n" * 8_000),
    ],
    ids=["trailers", "one trailer", "an extension of a chunk", "empty lines"],
)
async def test_what_is_no_body_and_has_no_end_is_cut_off(
    made: InprocessServer, port: Port, begin: bytes, piece: bytes
) -> None:
    before = made.snapshot()
    assert await sent_until_cut_off(port, begin, piece) < 8_000_000  # what the system takes is counted as well
    assert made.snapshot() == before


async def test_a_trailer_is_no_header(port: Port) -> None:
    async with port.line() as line:
        head = b"POST /v1/workloads HTTP/1.1\r\nHost: roost\r\n" + CHUNKED + b"\r\n"
        await line.transmit(head + b"2\r\n{}\r\n0\r\n" + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert (await line.hear())[0] == 401


@pytest.mark.parametrize("path", [b"/livez", b"/v1/changes"])
async def test_requests_without_end_behind_one_that_is_being_answered_are_cut_off(port: Port, path: bytes) -> None:
    first = b"GET /v1/changes HTTP/1.1\r\n" + HEAD + b"\r\n"
    piece = (b"GET " + path + b" HTTP/1.1\r\n\r\n") * 100
    assert await sent_until_cut_off(port, first, piece) < 8_000_000


# --- slow -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "then"),
    [
        (GET + b"\r\n", b"\r\n"),
        (GET + b"\r\n", GET),
        (GET + b"\r\n" + GET, b"X"),
        (b"POST /v1/workloads HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{", b"{"),
        (b"POST /v1/workloads HTTP/1.1\r\n" + CHUNKED + b"\r\n1\r\n", b"{"),
        (GET + b"Content-Length: 1000000\r\n\r\n{", b"{"),
    ],
    ids=["an empty line", "half a head", "more of a head", "a refused body", "a refused chunk", "an unread body"],
)
async def test_a_caller_that_never_finishes_is_cut_off_whatever_it_got_before(
    port: Port, text: bytes, then: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_S_MAX", SOON_S)
    with capture_logs() as answer:
        async with port.line() as line:
            await line.transmit(text)
            assert (await line.hear())[0] in (200, 401)
            await line.transmit(then)
            assert await line.is_closed()
    assert ("connection cut off", "127.0.0.1") in [(item["event"], item.get("where")) for item in answer]


async def test_a_body_that_comes_byte_by_byte_has_so_long_and_no_longer(
    made: InprocessServer, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_S_MAX", SOON_S)
    monkeypatch.setattr(http_server, "HEAD_S_MAX", SOON_S)
    before = made.snapshot()
    async with port.line() as line:
        await line.transmit(POST + b"Content-Length: 100000\r\n\r\n")
        reading = asyncio.ensure_future(everything(line))
        async with asyncio.timeout(10):
            while not reading.done():
                try:
                    await line.transmit(b"{")
                except ConnectionError:
                    break
                await asyncio.sleep(0.005)
        assert (await reading).startswith(b"HTTP/1.1 400")
    assert made.snapshot() == before


async def test_a_caller_that_waits_for_an_answer_may_send_an_empty_line(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old clients end a body with one; a stream that is being read is not ended by it."""
    monkeypatch.setattr(http_server, "HEAD_S_MAX", SOON_S)
    async with port.line() as line:
        await line.transmit(b"GET /v1/changes HTTP/1.1\r\n" + HEAD + b"\r\n\r\n")
        await line.reader.readuntil(b"\r\n\r\n")
        (connection,) = port.connections
        async with asyncio.timeout(10):
            while connection._timer is not None:
                await asyncio.sleep(0.01)
        assert not connection.transport.is_closing()


async def long_log(made: InprocessServer) -> bytes:
    """A run with a log; where it is."""
    await made.agent()
    await made.submit()
    serial = made.engine.state.workloads["default/job"].serial
    for _ in range(LOG_BYTES // PIECE_BYTES):
        size = made.logs.size(f"default/job/{serial}/0.1") or 0
        made.logs.append(f"default/job/{serial}/0.1", size, bytes(PIECE_BYTES))
    return b"/v1/workloads/default/job/instances/0/log"


@pytest.mark.parametrize("what", [b"/follow", b"?limit=8388608"], ids=["a stream", "an answer"])
async def test_a_reader_that_never_reads_is_cut_off(
    made: InprocessServer, port: Port, what: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STALL_S_MAX", SOON_S)
    path = await long_log(made)
    with capture_logs() as answer:
        deaf = await port.socket(b"GET " + path + what + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 4_096)
        await made.until(lambda: port.connections)
        (connection,) = port.connections
        sizes: list[int] = []
        await made.until(lambda: sizes.append(connection.transport.get_write_buffer_size()) or not port.connections)
    assert 0 < max(sizes) <= LOG_BYTES, "one answer is as large as it is; a stream waits for its reader"
    assert what != b"/follow" or max(sizes) < LOG_BYTES // 4
    assert ("127.0.0.1", "did not read its answer") in [(item.get("where"), item.get("why")) for item in answer]
    deaf.close()


async def test_a_slow_reader_is_not_cut_off(made: InprocessServer, port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    stall_s = 0.75  # the reader is in this process as well, and may have to wait for a core
    monkeypatch.setattr(http_server, "STALL_S_MAX", stall_s)
    path = await long_log(made)
    head = b"GET " + path + b"?limit=8388608 HTTP/1.1\r\nConnection: close\r\n" + HEAD + b"\r\n"
    slow = await port.socket(head, 1 << 18)
    loop, size, began_s = asyncio.get_running_loop(), 0, time.monotonic()
    async with asyncio.timeout(30):
        while piece := await loop.sock_recv(slow, 1 << 18):
            size += len(piece)
            await asyncio.sleep(0.05)  # this is what is slow here
    assert size > LOG_BYTES and time.monotonic() - began_s > 2 * stall_s
    slow.close()


# --- TLS --------------------------------------------------------------------------------------------------------------


def tls_of_server() -> ssl.SSLContext:
    bundle = authority().for_server("roost", ("127.0.0.1",))
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(bundle.key + bundle.certificate)
        file.flush()
        made.load_cert_chain(file.name)
    return made


@pytest.mark.parametrize(
    "text", [b"", b"\x16\x03\x01\x02\x00\x01", GET + b"\r\n" + HIDDEN], ids=["nothing", "half a hello", "plain HTTP"]
)
async def test_a_caller_that_speaks_no_tls_where_it_is_spoken_is_cut_off(
    made: InprocessServer, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE_S_MAX", SOON_S)
    before = made.snapshot()
    async with port_of(made, tls_of_server()) as port:
        async with port.line() as line:
            await line.transmit(text)
            assert b"HTTP" not in await everything(line)
        trusting = ssl.create_default_context(cadata=authority().certificate)
        async with port.line(trusting) as line:  # others are served
            await line.transmit(GET + b"\r\n")
            assert (await line.hear())[0] == 200
    assert made.snapshot() == before
