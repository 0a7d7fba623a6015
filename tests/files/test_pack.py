"""Packs: each file once, verified, and no more bytes than were asked for."""

import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from roost.files.manifest import SMALL_BYTES
from roost.files.pack import PackReader, pack, small_files
from roost.files.scan import scan
from roost.model.errors import Invalid
from roost.ports.blobs import digest_of


def record(data: bytes, digest: str | None = None, size: int | None = None) -> bytes:
    name = bytes.fromhex((digest or digest_of(data)).removeprefix("sha256:"))
    return name + (len(data) if size is None else size).to_bytes(4, "big") + data


def stream(*records: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(b"".join(records))


def expected(*contents: bytes) -> dict[str, int]:
    return {digest_of(data): len(data) for data in contents}


def read(wanted: dict[str, int], data: bytes) -> list[bytes]:
    reader = PackReader(wanted)
    found = [content for _, content in reader.feed(data)]
    reader.finish()
    return found


def test_the_same_bytes_travel_once_and_large_files_do_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    (tmp_path / "b").write_bytes(b"same")
    (tmp_path / "known").write_bytes(b"known")
    (tmp_path / "large").write_bytes(bytes(SMALL_BYTES))
    manifest = scan(tmp_path)
    missing = [file.digest for file in manifest.files() if file.digest != digest_of(b"known")]
    files = small_files(manifest, missing)
    assert [file.digest for file in files] == [digest_of(b"same")]
    assert read(expected(b"same"), b"".join(pack(tmp_path, files))) == [b"same"]


def test_nothing_to_pack_is_an_empty_stream(tmp_path: Path) -> None:
    assert read({}, b"".join(pack(tmp_path, []))) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (stream(record(b"one"), record(b"two")), "has more bytes"),
        (stream(record(b"one"), b"x"), "has more bytes"),
        (stream(record(b"one")) + b"x", "bytes"),
        (stream(record(b"one")) + stream(record(b"one")), "bytes"),
        (stream(record(b"two")), "was not asked for"),
        (stream(record(b"two", digest_of(b"one"))), "the bytes have another digest"),
        (stream(record(b"on", digest_of(b"one"))), "came with 2 bytes"),
        (stream(record(b"one", size=2)), "came with 2 bytes"),
        (stream(record(b"one", size=0xFFFFFFFF)), "came with 4294967295 bytes"),
        (stream(record(b"one")[:-1]), "ended before"),
        (stream(record(b"one"))[:-1], "ended before"),
        (stream(), "ended before"),
        (b"", "ended before"),
        (b"not zstd", "is not a stream of zstd"),
    ],
)
def test_a_wrong_pack_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        read(expected(b"one"), data)


@pytest.mark.parametrize("again", [b"one", b"two"])
def test_a_file_that_came_already_is_refused(again: bytes) -> None:
    with pytest.raises(Invalid, match="was not asked for"):
        read(expected(b"one", b"three"), stream(record(b"one"), record(again)))


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compressobj()
    data = b"".join(bomb.compress(bytes(16 << 20)) for _ in range(64)) + bomb.flush()  # a GiB in 40 KB
    assert len(data) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match="has more bytes"):
            read(expected(b"one"), data)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_a_window_that_takes_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(record(b"one")) + compressor.flush()
    with pytest.raises(Invalid, match="is not a stream of zstd"):
        read(expected(b"one"), data)


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_random_bytes_are_refused_or_right(data: bytes, cut: int) -> None:
    for hostile in (data, stream(record(b"one"))[:cut] + data, stream(data)):
        try:
            assert read(expected(b"one"), hostile) == [b"one"]
        except Invalid:
            pass


@pytest.mark.parametrize("content", [b"one+", b"o", b"two", b""])
def test_a_file_that_changed_since_the_scan_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(b"one")
    manifest = scan(tmp_path)
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(Invalid, match="^x: changed while it was sent"):
        list(pack(tmp_path, manifest.files()))


def test_a_file_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "x").write_bytes(b"one")
    manifest = scan(tmp_path / "root")
    (tmp_path / "root" / "x").rename(tmp_path / "outside")
    (tmp_path / "root" / "x").symlink_to("../outside")
    with pytest.raises(OSError, match="symbolic links"):
        list(pack(tmp_path / "root", manifest.files()))
