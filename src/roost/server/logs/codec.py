"""A segment as bytes: compressed, with a checksum, and with the times when its bytes came."""

import struct
import threading
from collections.abc import Sequence

import zstandard

from roost.server.logs.segments import Segment, Stamp

LEVEL = 1  # 2 ms per MB of text; level 3 takes half as long again, and saves nothing
MAGIC = b"RLS1"

_STAMP = struct.Struct("<QQ")
_LENGTH = struct.Struct("<I")
_CODECS = threading.local()  # a codec is for one thread at a time


class DamagedSegment(Exception):
    """The object is no segment, or not the one that its key names."""


def encode(data: bytes, stamps: Sequence[Stamp]) -> bytes:
    """Two frames, the times and the bytes: the bytes are not copied before they are compressed."""
    if not hasattr(_CODECS, "compressor"):
        _CODECS.compressor = zstandard.ZstdCompressor(LEVEL, write_checksum=True)
    index = _CODECS.compressor.compress(b"".join(_STAMP.pack(*stamp) for stamp in stamps))
    return b"".join((MAGIC, _LENGTH.pack(len(index)), index, _CODECS.compressor.compress(data)))


def decode(segment: Segment, stored: bytes) -> tuple[bytes, list[Stamp]]:
    """The bytes and their stamps. Raises DamagedSegment."""
    if not stored.startswith(MAGIC):
        raise DamagedSegment("it does not begin as a segment does")
    if not hasattr(_CODECS, "decompressor"):
        _CODECS.decompressor = zstandard.ZstdDecompressor()
    decompress, frames = _CODECS.decompressor.decompress, memoryview(stored)
    try:
        (length,) = _LENGTH.unpack_from(stored, len(MAGIC))
        begin = len(MAGIC) + _LENGTH.size
        index = decompress(frames[begin : begin + length])
        data: bytes = decompress(frames[begin + length :])
        stamps = [Stamp(*found) for found in _STAMP.iter_unpack(index)]
    except (zstandard.ZstdError, struct.error) as error:
        raise DamagedSegment(str(error)) from None
    if len(data) != segment.end - segment.start:
        raise DamagedSegment(f"it has {len(data)} bytes in place of {segment.end - segment.start}")
    return data, stamps
