"""Transfers in parallel, each over a connection of its own, repeated while the servers are away."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from roost.client.errors import ApiError, ClientError, Unreachable, may_send_again
from roost.client.transport import BYTES, HttpAnswer, Query, Transport
from roost.files import web

PARALLEL = 2  # connections: one sends while the server stores what the other has sent; more gain nothing
PATIENCE_S = 60.0  # without any progress: a server restarts in seconds, a standby takes over within thirty
DELAY_S, DELAY_S_MAX = 0.1, 2.0  # between two tries: the first is for a moment, the last for a restart


class OthersFailed(Exception):
    """Another transfer failed, or the caller was interrupted."""


class Link:
    """A connection whose calls may all be repeated: what is named by its digest is the same the second time."""

    def __init__(self, transport: Transport, stop: threading.Event) -> None:
        self._transport = transport
        self._stop = stop

    def call(
        self, method: str, path: str, query: Query | None = None, body: bytes | memoryview = b"", kind: str = BYTES,
        sent: Callable[[], None] = lambda: None,
    ) -> HttpAnswer:  # fmt: skip
        """`sent`: called when the body is out, and before the answer; once more for each repetition."""
        tries = _Patience(self._stop)
        while True:
            try:
                return self._transport.call(method, path, query, body, kind, sent)
            except ClientError as error:
                tries.failed(error)

    def put_url(self, url: str, size: int, read: web.Read) -> None:
        """Send a blob to where the server wants it. What fails there is noticed when the server is asked."""
        with suppress(web.WebTrouble):
            web.put(url, size, read, _Patience(self._stop).restart)

    def download(self, path: str, size: int, url: str = "") -> Iterator[bytes | memoryview]:
        """Exactly the bytes of a blob, gone on with where the connection broke. Each block overwrites the last.

        `url`: where they can be read directly. What fails there comes from the server.
        """
        at, tries = 0, _Patience(self._stop)
        with suppress(web.WebTrouble):
            for chunk in web.get(url, 0, size, tries.restart) if url else ():
                at += len(chunk)
                yield chunk
        while at < size:
            try:
                for block in self._transport.download(path, at):
                    at += len(block)
                    tries.restart()
                    yield block
                if at < size:
                    raise Unreachable("the connection broke")
            except ClientError as error:
                tries.failed(error)


class _Patience:
    """Failures in a row: each is followed by a wait, until there were none but failures for too long."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.restart()

    def restart(self) -> None:
        if self._stop.is_set():
            raise OthersFailed
        self._end, self._delay_s = time.monotonic() + PATIENCE_S, DELAY_S

    def failed(self, error: ClientError) -> None:
        code = error.code if isinstance(error, ApiError) else None
        is_passing = isinstance(error, Unreachable | ApiError) and may_send_again(code, is_idempotent=True)
        if not is_passing or time.monotonic() + self._delay_s > self._end:
            raise error
        if self._stop.wait(self._delay_s):
            raise OthersFailed
        self._delay_s = min(2 * self._delay_s, DELAY_S_MAX)


Job = Callable[[Link], object]


def run_all(transport: Transport, jobs: Iterable[Job]) -> None:
    """All jobs, in order, some at once. The first failure ends the others and is raised."""
    pending = deque(jobs)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(own: Transport) -> None:
        try:
            with suppress(OthersFailed):
                while (job := _next(pending)) is not None and not stop.is_set():
                    job(Link(own, stop))
        except BaseException as error:
            failures.append(error)
            stop.set()

    others = [transport.copy() for _ in range(min(len(pending), PARALLEL) - 1)]
    threads = [threading.Thread(target=work, args=(other,), daemon=True) for other in others]
    for thread in threads:
        thread.start()
    work(transport)
    for thread, other in zip(threads, others, strict=True):
        thread.join()
        other.close()
    if failures:
        raise failures[0]


def _next(pending: deque[Job]) -> Job | None:
    try:
        return pending.popleft()
    except IndexError:
        return None
