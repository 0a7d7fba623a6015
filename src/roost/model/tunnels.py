"""Tunnels into runs: what is wanted of a node, and the frames that a client and an agent send each other through them.

A frame is one byte that says its kind, and bytes. Servers pass frames on and read only the last one. Input has a
window, so that no hop ever stops to read: a client that leaves is noticed whatever waits.
"""

import struct
from enum import IntEnum

import msgspec

FRAME_BYTES_MAX = 64 << 10  # of content
INPUT_FRAMES_MAX = 8  # of input that the run has not taken; the client waits then
ARGV_BYTES_MAX = 64 << 10  # of a command
TERM_LENGTH_MAX = 64
SIDE_MAX = 10_000  # rows or columns of a terminal
ERROR_LENGTH_MAX = 1_000

_SIZE = struct.Struct("!HH")


class TunnelOrder(msgspec.Struct, frozen=True):
    """A way into a run: a command in it, one of its ports, or its serial console."""

    id: str
    token: int
    argv: tuple[str, ...] = ()
    terminal: bool = False
    rows: int = 0
    columns: int = 0
    term: str = ""
    port: int = 0  # of the node
    console: bool = False  # of a virtual machine


class FrameKind(IntEnum):
    INPUT = 0  # client to run
    INPUT_END = 1
    RESIZE = 2
    SIGNAL = 3
    OUTPUT = 4  # run to client
    ERRORS = 5  # stderr, where there is no terminal
    OUTPUT_END = 6  # of a port; input may go on
    ENDED = 7  # the last one
    TAKEN = 8  # run to client: one frame of input


class TunnelEnd(msgspec.Struct, frozen=True):
    """How a tunnel ended: as its command did, or with an error."""

    code: int | None = None
    signal: int | None = None
    error: str = ""
    reason: str = ""  # for programs, with `error`: refused, lost, idle, ended, stopped


class BadFrame(Exception):
    pass


def frame(kind: FrameKind, data: bytes | memoryview = b"") -> bytes:
    return bytes((kind,)) + bytes(data)


def resized(rows: int, columns: int) -> bytes:
    return frame(FrameKind.RESIZE, _SIZE.pack(min(rows, SIDE_MAX), min(columns, SIDE_MAX)))


def ended(end: TunnelEnd) -> bytes:
    return frame(FrameKind.ENDED, msgspec.json.encode(end))


def kind_of(data: bytes) -> FrameKind:
    """Raises BadFrame."""
    if not data or len(data) > FRAME_BYTES_MAX + 1 or data[0] not in FrameKind._value2member_map_:
        raise BadFrame(f"this is no frame of a tunnel ({len(data)} bytes)")
    return FrameKind(data[0])


def size_in(data: bytes) -> tuple[int, int]:
    """Rows and columns of a RESIZE frame. Raises BadFrame."""
    try:
        rows, columns = _SIZE.unpack(data[1:])
    except struct.error:
        raise BadFrame("a size has two numbers") from None
    return min(rows, SIDE_MAX), min(columns, SIDE_MAX)


def end_in(data: bytes) -> TunnelEnd:
    """Of an ENDED frame. Raises BadFrame."""
    try:
        return msgspec.json.decode(data[1:], type=TunnelEnd)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"the end of a tunnel cannot be read: {error}") from None
