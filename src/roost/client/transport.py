"""One kept-alive HTTP connection for calls, one connection each for streams. Standard library only: it starts fast."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from roost import __version__
from roost.client.errors import ApiError, Unreachable, may_send_again
from roost.client.stream import EventStream
from roost.schema.errors import ErrorView

if TYPE_CHECKING:
    from ssl import SSLContext

    from websockets.sync.client import ClientConnection

CONNECT_TIMEOUT_S = 5.0  # a host that has not accepted by then will not
CALL_TIMEOUT_S = 60.0  # a batch of 10,000 workloads on a busy disk takes seconds, never this
# A host whose system confirms nothing for about as long is cut off, and no answer will come. One that is merely slow
# confirms everything. What a system does not know is left out.
ALIVE = (
    ("TCP_USER_TIMEOUT", 5_000),  # milliseconds, while something of ours is on its way
    ("TCP_KEEPIDLE", 2),  # seconds, while we wait for the answer; then asked three times
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", 3),
)
IDLE_REUSE_S = 2.0  # servers drop idle connections after 5 s; a POST must not meet one that is just being dropped
ERROR_BYTES_MAX = 64 * 1024  # an error is a sentence; whatever is longer comes from a proxy
BLOCK_BYTES = 1 << 20  # of a download, held in memory; smaller blocks cost more calls
MESSAGE_BYTES_MAX = 1 << 20  # of a WebSocket; ours are of 64 KiB
HANDSHAKE_TIMEOUT_S = 20.0  # a standby looks for its leader first
PING_S = 20.0  # keeps proxies from ending a WebSocket that is silent
JSON, BYTES = "application/json", "application/octet-stream"

Query = Mapping[str, str | int | bool | Sequence[str] | None]


class HttpAnswer(NamedTuple):
    """What came back: headers in lower case, the body."""

    headers: dict[str, str]
    body: bytes


class Transport:
    """Speaks to one of several servers, whichever answers. Calls are for one thread at a time; streams for any."""

    def __init__(self, url: str, token: str, ca: str = "") -> None:
        self.url = url
        self._places = [urlsplit(part.strip()) for part in url.split(",")]
        self._at = 0  # which of them is spoken to
        self._headers = {"User-Agent": f"roost/{__version__}"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._ca = ca
        self._tls: SSLContext | None = None
        self._connection: HTTPConnection | None = None
        self._used_at = 0.0

    def call(
        self, method: str, path: str, query: Query | None = None, body: bytes | memoryview | None = None,
        kind: str = JSON, sent: Callable[[], None] = lambda: None,
    ) -> HttpAnswer:  # fmt: skip
        """Ask and wait for the answer. Raises ApiError, Unreachable.

        `kind`: the media type of the body. `sent`: called when the body is out, before the answer; maybe repeatedly.
        """
        for tried in range(len(self._places)):
            try:
                return self._call(method, path, query, body, kind, sent)
            except ApiError as error:
                if not may_send_again(error.code, is_idempotent=False) or tried == len(self._places) - 1:
                    raise
            except Unreachable:
                if not may_send_again(None, is_idempotent=method == "GET") or tried == len(self._places) - 1:
                    self._leave()  # the next call need not find out again
                    raise
            self._leave()
        raise AssertionError("there is at least one server")

    def _call(
        self, method: str, path: str, query: Query | None, body: bytes | memoryview | None, kind: str,
        sent: Callable[[], None],
    ) -> HttpAnswer:  # fmt: skip
        connection, fresh = self._take()
        try:
            return self._exchange(connection, method, path, query, body, kind, sent)
        except Unreachable:
            # A kept connection may have been dropped by the other side.
            if fresh or method != "GET":
                raise
        connection, _ = self._take()
        return self._exchange(connection, method, path, query, body, kind, sent)

    def copy(self) -> "Transport":
        """Another one to the same servers, for another thread."""
        other = Transport(self.url, "", self._ca)
        other._headers, other._tls = self._headers, self._tls
        return other

    def download(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """The bytes of an answer from `start` on. Each block is overwritten by the next. Raises ApiError, Unreachable.

        Ends early where the connection breaks in a way that looks like the end: the caller counts.
        """
        connection, _ = self._take()
        headers = {**self._headers, "Range": f"bytes={start}-"} if start else self._headers
        block = memoryview(bytearray(BLOCK_BYTES))
        whole = False
        try:
            connection.request("GET", self._target(path, None), headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _reported(response.status, response.read(ERROR_BYTES_MAX))
            while length := response.readinto(block):
                yield block[:length]
            whole = not response.will_close
            self._used_at = time.monotonic()
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            if not whole:
                self.close()

    def stream(self, path: str, query: Query | None, last_id: str) -> EventStream:
        connection = self._connect()
        headers = {**self._headers, "Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        try:
            connection.request("GET", self._target(path, query), headers=headers)
            return EventStream(connection.sock, _reported, CALL_TIMEOUT_S)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise self._unreachable(error) from None
            raise

    def web_socket(self, path: str) -> "ClientConnection":
        """On a connection of its own, to the server that answered last. Raises ApiError, Unreachable."""
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect

        connection = self._connect()
        sock, connection.sock = connection.sock, None
        target = f"ws://{self._places[self._at].netloc}{self._target(path, None)}"  # the socket has its TLS already
        try:
            return connect(
                target, sock=sock, proxy=None, compression=None, additional_headers=self._headers,
                user_agent_header=None, max_size=MESSAGE_BYTES_MAX, open_timeout=HANDSHAKE_TIMEOUT_S,
                ping_interval=PING_S, ping_timeout=None, close_timeout=CONNECT_TIMEOUT_S, legacy=True,
            )  # fmt: skip
        except InvalidStatus as error:
            sock.close()
            raise _reported(error.response.status_code, bytes(error.response.body or b"")) from None
        except (InvalidHandshake, OSError) as error:
            sock.close()
            raise self._unreachable(error) from None

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(
        self, connection: HTTPConnection, method: str, path: str, query: Query | None,
        body: bytes | memoryview | None, kind: str, sent: Callable[[], None],
    ) -> HttpAnswer:  # fmt: skip
        headers = self._headers if body is None else {**self._headers, "Content-Type": kind}
        try:
            connection.request(method, self._target(path, query), body, headers)
            sent()
            response = connection.getresponse()
            answer = response.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise self._unreachable(error) from None
        except BaseException:
            self.close()  # interrupted half-way: what comes next on this connection belongs to this call
            raise
        self._used_at = time.monotonic()
        if response.will_close:
            self.close()
        if response.status >= 400:
            raise _reported(response.status, answer[:ERROR_BYTES_MAX])
        return HttpAnswer({name.lower(): value for name, value in response.getheaders()}, answer)

    def _take(self) -> tuple[HTTPConnection, bool]:
        """The kept connection if it can be trusted, else a new one (True)."""
        if self._connection is not None and time.monotonic() - self._used_at < IDLE_REUSE_S:
            return self._connection, False
        self.close()
        self._connection = self._connect()
        return self._connection, True

    def _leave(self) -> None:
        self.close()
        self._at = (self._at + 1) % len(self._places)

    def _connect(self) -> HTTPConnection:
        """A connection to the first server that takes one, beginning with the one that answered last."""
        failure: OSError = OSError("there is no server")
        for _ in self._places:
            try:
                return self._connect_to(self._places[self._at])
            except OSError as error:
                failure = error
                self._at = (self._at + 1) % len(self._places)
        raise self._unreachable(failure) from None

    def _connect_to(self, place: SplitResult) -> HTTPConnection:
        host = place.hostname or ""
        if place.scheme == "https":
            self._tls = self._tls or tls_context(self._ca)
            connection: HTTPConnection = HTTPSConnection(host, place.port, timeout=CONNECT_TIMEOUT_S, context=self._tls)
        else:
            connection = HTTPConnection(host, place.port, timeout=CONNECT_TIMEOUT_S)
        connection.connect()
        connection.sock.settimeout(CALL_TIMEOUT_S)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in ALIVE:
            if hasattr(socket, name):
                connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return connection

    def _target(self, path: str, query: Query | None) -> str:
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in (query or {}).items() if value not in (None, "")
        }  # fmt: skip
        base = self._places[self._at].path.rstrip("/")
        return base + path + (f"?{urlencode(given, doseq=True)}" if given else "")

    def _unreachable(self, error: Exception) -> Unreachable:
        message = "it did not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        if type(error).__name__ == "SSLCertVerificationError":
            hint = "put the server's DATA/ca.pem into client.toml as `ca`, or name it in ROOST_CA"
            return Unreachable(f"the server at {self.url} is not to be trusted: {message}", hint)
        return Unreachable(f"no server at {self.url}: {message}", "start one with `roost up`, or look at ROOST_CONFIG")


def tls_context(ca: str) -> "SSLContext":
    """Accepts certificates of this CA (PEM), or of those that this system knows. Raises OSError."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        context.load_verify_locations(cadata=ca)
    else:
        context.load_default_certs()
    return context


def _reported(status: int, body: bytes) -> ApiError:
    try:
        refusal = msgspec.json.decode(body, type=ErrorView)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        message = body.decode(errors="replace").strip()[:200]
        return ApiError(status, f"http_{status}", message or f"the server answered with status {status}")
    return ApiError(status, refusal.code, refusal.message, refusal.path, refusal.hint or "", refusal.params)
