"""QEMU's protocol for programs: JSON lines on a socket. Never waits; what came is given to callbacks."""

import _socket
import json
from collections.abc import Callable

READ_BYTES = 1 << 16
LINE_BYTES_MAX = 4 << 20  # QEMU's answers to what we ask have a few hundred bytes
CALLS_MAX = 256  # without an answer: QEMU hangs

Answer = Callable[[object, str], None]  # what it returned, and why it could not


class Qmp:
    """`on_ready` is called when QEMU takes commands, `on_event` with the name and data of each event."""

    def __init__(
        self, sock: _socket.socket, on_ready: Callable[[], None], on_event: Callable[[str, dict[str, object]], None]
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.on_ready = on_ready
        self.on_event = on_event
        self.buffer = b""
        self.unsent = b""
        self.calls: dict[int, Answer] = {}
        self.count = 0

    def call(self, name: str, arguments: dict[str, object] | None, answer: Answer) -> None:
        if len(self.calls) >= CALLS_MAX:
            answer(None, "QEMU does not answer")
            return
        self.count += 1
        self.calls[self.count] = answer
        message: dict[str, object] = {"execute": name, "id": self.count}
        if arguments:
            message["arguments"] = arguments
        self.unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        try:
            self.unsent = self.unsent[self.sock.send(self.unsent) :] if self.unsent else b""
        except BlockingIOError:
            pass
        except OSError:
            self.unsent = b""  # its end is noticed by reading

    def read(self) -> bool:
        """False: QEMU has closed the connection, or what it says is no QMP."""
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return all(self._take(line) for line in lines) and bool(data) and len(self.buffer) <= LINE_BYTES_MAX

    def _take(self, line: bytes) -> bool:
        try:
            message = json.loads(line)
        except ValueError:
            return False
        if not isinstance(message, dict):
            return False
        if "QMP" in message:
            self.call("qmp_capabilities", None, lambda result, error: self.on_ready())
        elif "event" in message:
            data = message.get("data")
            self.on_event(str(message["event"]), data if isinstance(data, dict) else {})
        elif (answer := self.calls.pop(message.get("id", 0), None)) is not None:
            problem = message.get("error")
            answer(message.get("return"), str(problem.get("desc")) if isinstance(problem, dict) else "")
        return True

    def close(self) -> None:
        self.sock.close()
