"""A network that can be cut: bytes pass until `cut`, then silence both ways with every connection left open."""

import socket
import threading
from typing import Self


class Proxy:
    """Listens on a port of its own and passes everything to a target."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.heal()

    def cut(self) -> None:
        """From now on nothing arrives, and no side learns it."""
        self._flowing.clear()

    def heal(self) -> None:
        """New connections pass; the old ones are gone, as after a long partition."""
        for other_socket in self._open:
            other_socket.close()
        self._open.clear()
        self._flowing.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                self._flowing.wait()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self._flowing.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for other_socket in (source, sink):
                try:
                    other_socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
