"""A segment as bytes: compressed, with a checksum, and with the times when its bytes came."""

import struct
import threading
from collections.abc import Sequence

import zstandard

from roost.server.logs.segments import Segment, Stamp

LEVEL = 1  # 2 ms per MB of text; level 3 takes half as long again, and saves nothing
MAGIC = b"RLS1"

_STAMP = struct.Struct("<QQ")
_COUNT = struct.Struct("<I")
_CODECS = threading.local()  # a codec is for one thread at a time


class DamagedSegment(Exception):
    """The object is no segment, or not the one that its key names."""


def encode(data: bytes, stamps: Sequence[Stamp]) -> bytes:
    index = b"".join(_STAMP.pack(*stamp) for stamp in stamps)
    if not hasattr(_CODECS, "compressor"):
        _CODECS.compressor = zstandard.ZstdCompressor(LEVEL, write_checksum=True)
    return MAGIC + bytes(_CODECS.compressor.compress(_COUNT.pack(len(stamps)) + index + data))


def decode(segment: Segment, stored: bytes) -> tuple[bytes, list[Stamp]]:
    """The bytes and their stamps. Raises DamagedSegment."""
    if not stored.startswith(MAGIC):
        raise DamagedSegment("it does not begin as a segment does")
    if not hasattr(_CODECS, "decompressor"):
        _CODECS.decompressor = zstandard.ZstdDecompressor()
    try:
        whole: bytes = _CODECS.decompressor.decompress(memoryview(stored)[len(MAGIC) :])
        (count,) = _COUNT.unpack_from(whole)
        begin = _COUNT.size + count * _STAMP.size
        stamps = [Stamp(*found) for found in _STAMP.iter_unpack(whole[_COUNT.size : begin])]
    except (zstandard.ZstdError, struct.error) as error:
        raise DamagedSegment(str(error)) from None
    if len(whole) - begin != segment.end - segment.start:
        raise DamagedSegment(f"it has {len(whole) - begin} bytes in place of {segment.end - segment.start}")
    return whole[begin:], stamps
