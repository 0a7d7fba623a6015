"""Tunnels into running instances: a command in one of them, or a connection to one of its ports, over a WebSocket."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from roost.client.errors import Unreachable
from roost.client.namespace import Namespace, path_of
from roost.client.running import running_index
from roost.model.tunnels import (
    INPUT_FRAMES_MAX,
    FrameKind,
    TunnelEnd,
    end_in,
    frame,
    kind_of,
    resized,
)
from roost.schema.work import TunnelBody, TunnelView

if TYPE_CHECKING:  # the first tunnel imports it: commands start fast
    from websockets.sync.client import ClientConnection

INPUT_BYTES = 32 << 10  # of one frame


class Tunnel:
    """One tunnel. `read` is for one thread; the rest for another."""

    def __init__(self, connection: "ClientConnection", view: TunnelView) -> None:
        self.view = view
        self.end: TunnelEnd | None = None  # once `read` has given its last
        self._connection = connection
        self._window = threading.Semaphore(INPUT_FRAMES_MAX)
        self._is_over = False

    def read(self) -> tuple[FrameKind, bytes] | None:
        """What comes next: OUTPUT, ERRORS or OUTPUT_END; None: it is over, and `end` says how. Raises Unreachable."""
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                data = self._connection.recv()
            except ConnectionClosed as error:
                self._over()
                raise Unreachable(
                    f"the connection to the server broke: {error}", "whether the command has ended is not known"
                ) from None
            assert isinstance(data, bytes)
            match kind_of(data):
                case FrameKind.TAKEN:
                    self._window.release()
                case FrameKind.ENDED:
                    self.end = end_in(data)
                    self._over()
                    return None
                case kind:
                    return kind, data[1:]

    def write(self, data: bytes) -> bool:
        """Send input; waits while the run does not take it. False: it is over."""
        for start in range(0, len(data), INPUT_BYTES):
            self._window.acquire()
            if not self._send(frame(FrameKind.INPUT, data[start : start + INPUT_BYTES])):
                return False
        return not self._is_over

    def end_input(self) -> None:
        self._send(frame(FrameKind.INPUT_END))

    def resize(self, rows: int, columns: int) -> None:
        self._send(resized(rows, columns))

    def signal(self, number: int) -> None:
        """Send a signal to the command and its process group."""
        self._send(frame(FrameKind.SIGNAL, bytes((number,))))

    def close(self) -> None:
        """What the command has started ends with it."""
        self._over()
        self._connection.close()

    def __enter__(self) -> "Tunnel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, data: bytes) -> bool:
        from websockets.exceptions import ConnectionClosed

        if self._is_over:
            return False
        try:
            self._connection.send(data)
        except ConnectionClosed:
            return False
        return True

    def _over(self) -> None:
        self._is_over = True
        self._window.release(INPUT_FRAMES_MAX)  # a writer that waits goes on, and sees it


class TunnelCalls(Namespace):
    """Ways into running instances. A tunnel ends with its instance, and what its command has started ends with it."""

    def exec(
        self, project: str, name: str, argv: Sequence[str], *, index: int | None = None, terminal: bool = False,
        rows: int = 0, columns: int = 0, term: str = "",
    ) -> Tunnel:  # fmt: skip
        """Start a command in an instance. With a terminal, its stdout and stderr are one stream.

        Without an index, the only running instance is meant: ValueError if there are more.
        """
        body = TunnelBody(argv=[*argv], terminal=terminal, rows=rows, columns=columns, term=term)
        return self._open(project, name, index, body)

    def port(self, project: str, name: str, port: str, *, index: int | None = None) -> Tunnel:
        """A connection to a port of an instance, by its name in the document or its number."""
        return self._open(project, name, index, TunnelBody(port=port))

    def console(self, project: str, name: str, *, index: int | None = None) -> Tunnel:
        """The serial console of a virtual machine, for one client at a time."""
        return self._open(project, name, index, TunnelBody(console=True, terminal=True))

    def _open(self, project: str, name: str, index: int | None, body: TunnelBody) -> Tunnel:
        at = running_index(self, project, name) if index is None else index
        path = path_of("/v1/workloads/{}/{}/instances/{}/tunnels", project, name, str(at))
        view = self._call("POST", path, TunnelView, body)
        return Tunnel(self._transport.web_socket(f"/v1/tunnels/{view.id}"), view)
