"""gRPC's poller thread: it must never wait for the event loop.

For each event it writes a byte to a socket, and the loop reads one byte per turn, however many events it then handles.
The socket is full with some 280 bytes. From then on the poller is blocked, and a turn has one event of all agents.
Without blocking, the byte is dropped instead. That is safe: the loop will read another one and handle all events.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc


@contextmanager
def polling() -> Iterator[None]:
    """Around all use of gRPC in this process: the first user makes the socket."""
    make = socket.socketpair

    def make_without_blocking(*arguments: Any, **options: Any) -> tuple[socket.socket, socket.socket]:
        reading, writing = make(*arguments, **options)
        writing.setblocking(False)
        return reading, writing

    socket.socketpair = make_without_blocking
    try:
        grpc.aio.init_grpc_aio()
    finally:
        socket.socketpair = make
    try:
        yield
    finally:
        grpc.aio.shutdown_grpc_aio()
