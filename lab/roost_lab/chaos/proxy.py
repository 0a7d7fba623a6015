"""A TCP proxy that can be cut: bytes pass until then; afterwards silence both ways, with every connection left open."""

import contextlib
import socket
import threading

CHUNK_BYTES = 65_536


class Proxy:
    """Listens at one address and passes everything to another."""

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._target = target
        self._flowing = threading.Event()
        self._flowing.set()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(listen)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._flowing.clear()

    def heal(self) -> None:
        """New connections pass; the old ones are gone, as after a long partition."""
        connections, self._open = self._open, []
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._flowing.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._flowing.wait()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self._open += [near, far]
        threading.Thread(target=self._pump, args=(far, near), daemon=True).start()
        self._pump(near, far)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._flowing.wait()
                sink.sendall(data)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
