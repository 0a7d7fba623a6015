"""Small files in one stream: digest, length and bytes of each, compressed with zstd. Verified as it is read."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import zstandard

from roost.files.below import FILE, Below
from roost.files.manifest import SMALL_BYTES, FileEntry, Manifest
from roost.model.errors import Invalid, TooMuch
from roost.ports.blobs import SHA256, digest_of

LEVEL = 1  # level 3 takes a third more CPU and saves a tenth
CHUNK_BYTES = 256 << 10  # what a chunk of the stream has, about
WINDOW_BYTES_MAX = 8 << 20  # memory of the reader; level 1 needs 512 KiB
SLICE_BYTES = 1 << 10  # four bytes of zstd may become 128 KiB: 32 MiB at once
LENGTH_BYTES = 4
HEADER_BYTES = 32 + LENGTH_BYTES


def small_files(manifest: Manifest, missing: Iterable[str]) -> list[FileEntry]:
    """Files for a pack, each digest once."""
    wanted = set(missing)
    found = {file.digest: file for file in manifest.files() if file.size < SMALL_BYTES and file.digest in wanted}
    return list(found.values())


def pack(root: Path, files: Iterable[FileEntry]) -> Iterator[bytes]:
    """The stream, in chunks. Raises Invalid for a file that is not as its entry says."""
    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj()
    pending: list[bytes] = []
    size = 0
    with Below(root) as below:
        for file in files:
            data = read_small(below, file)
            header = bytes.fromhex(file.digest.removeprefix(SHA256)) + len(data).to_bytes(LENGTH_BYTES, "big")
            if piece := compressor.compress(header + data):
                pending.append(piece)
                size += len(piece)
            if size >= CHUNK_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
    pending.append(compressor.flush())
    yield b"".join(pending)


def pack_contents(contents: Iterable[tuple[str, bytes]]) -> bytes:
    """A whole pack of contents that are in memory."""
    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj()
    pieces: list[bytes] = []
    for digest, data in contents:
        header = bytes.fromhex(digest.removeprefix(SHA256)) + len(data).to_bytes(LENGTH_BYTES, "big")
        pieces.append(compressor.compress(header + data))
    pieces.append(compressor.flush())
    return b"".join(pieces)


def unpack_contents(data: bytes, bytes_max: int, count_max: int) -> list[tuple[str, bytes]]:
    """The contents of a whole pack, which are not verified. Raises Invalid or TooMuch."""
    left = bytes_max + HEADER_BYTES * count_max
    stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
    plain = bytearray()
    for start in range(0, len(data), SLICE_BYTES):
        plain += _plain(stream, data[start : start + SLICE_BYTES])
        if len(plain) > left:
            raise TooMuch(f"a pack has at most {bytes_max:,} bytes of contents, and {count_max:,} files")
    if not stream.eof:
        raise Invalid("pack", "the stream of zstd ended early")
    contents: list[tuple[str, bytes]] = []
    at = 0
    while at < len(plain):
        size = int.from_bytes(plain[at + 32 : at + HEADER_BYTES], "big")
        digest, end = SHA256 + plain[at : at + 32].hex(), at + HEADER_BYTES + size
        if end > len(plain):
            raise Invalid("pack", f"ended in the middle of file {len(contents)}")
        contents.append((digest, bytes(memoryview(plain)[at + HEADER_BYTES : end])))
        at = end
    if len(contents) > count_max:
        raise TooMuch(f"a pack has at most {count_max:,} files, not {len(contents):,}")
    return contents


def _plain(stream: "zstandard.ZstdDecompressionObj", data: bytes) -> bytes:
    if stream.eof:
        raise Invalid("pack", "there are bytes after its end")
    try:
        plain = stream.decompress(data)
    except zstandard.ZstdError as error:
        raise Invalid("pack", f"is not a stream of zstd: {error}") from None
    if stream.unused_data:
        raise Invalid("pack", "there are bytes after its end")
    return plain


def read_small(below: Below, file: FileEntry) -> bytes:
    """The bytes of a file, which are those of its entry."""
    descriptor = below.open(file.path, FILE)
    try:
        data = os.pread(descriptor, file.size + 1, 0)
    finally:
        os.close(descriptor)
    if digest_of(data) != file.digest:
        raise Invalid(file.path, "changed while it was sent")
    return data


class PackReader:
    """Takes a stream in pieces of any size; gives each file when it is whole and verified.

    `expected`: the size of each digest that was asked for. Nothing else is taken, so it bounds time and memory,
    however the stream was made. Raises Invalid for a stream that is wrong; the path names the digest.
    """

    def __init__(self, expected: dict[str, int]) -> None:
        self._expected = dict(expected)
        self._left = sum(expected.values()) + HEADER_BYTES * len(expected)
        self._stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Iterate to the end before the next piece."""
        for start in range(0, len(data), SLICE_BYTES):
            plain = _plain(self._stream, data[start : start + SLICE_BYTES])
            self._left -= len(plain)
            if self._left < 0:
                raise Invalid("pack", "has more bytes than the files that were asked for")
            self._buffer += plain
            yield from self._whole_files()

    def finish(self) -> None:
        """The stream has ended; everything that was asked for has come."""
        if self._expected or self._buffer or not self._stream.eof:
            path = next(iter(self._expected), "pack")
            raise Invalid(path, "the pack ended before all files came")

    def _whole_files(self) -> Iterator[tuple[str, bytes]]:
        at = 0
        while len(self._buffer) - at >= HEADER_BYTES:
            digest = SHA256 + self._buffer[at : at + 32].hex()
            size = int.from_bytes(self._buffer[at + 32 : at + HEADER_BYTES], "big")
            if self._expected.get(digest) != size:
                raise Invalid(digest, f"came with {size} bytes, and was not asked for")
            end = at + HEADER_BYTES + size
            if len(self._buffer) < end:
                break
            data = bytes(memoryview(self._buffer)[at + HEADER_BYTES : end])
            if hashlib.sha256(data).hexdigest() != digest.removeprefix(SHA256):
                raise Invalid(digest, "the bytes have another digest")
            del self._expected[digest]
            at = end
            yield digest, data
        del self._buffer[:at]
