"""The cache of inputs: bounded, least recently used first, whole after a crash, and never shared writable."""

import hashlib
import itertools
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.files import cache as module
from roost.files.below import Below
from roost.files.cache import InputCache
from roost.files.manifest import FileEntry, Manifest
from roost.files.unpack import NewFile, Unpack
from roost.model.errors import Invalid, TooMuch
from roost.ports.blobs import digest_of

OTHER_USER = 12_345


def content(number: int, size: int = 10) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()[:1] * (size - 3) + f"{number:03}".encode()


def add(cache: InputCache, *contents: bytes) -> None:
    for data in contents:
        cache.add(digest_of(data), len(data), [data])


def missing(cache: InputCache, *contents: bytes) -> list[bytes]:
    with cache.hold(digest_of(data) for data in contents) as digests:
        return [data for data in contents if digest_of(data) in digests]


def place(cache: InputCache, folder: Path, data: bytes, mode: int = 0o644, user: int | None = None) -> Path:
    with Below(folder) as below, cache.hold([digest_of(data)]):
        cache.place(digest_of(data), NewFile(below.root, "placed", mode), user=os.geteuid() if user is None else user)
    return folder / "placed"


@pytest.fixture
def cache(tmp_path: Path) -> InputCache:
    return InputCache(tmp_path / "cache", 50)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


A, B, C, D, E, F = (content(number) for number in range(6))


def test_a_placed_file_is_a_copy_with_its_mode(cache: InputCache, work: Path) -> None:
    add(cache, A)
    path = place(cache, work, A, 0o751)
    assert path.read_bytes() == A
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    path.write_bytes(b"changed")
    path.unlink()
    assert place(cache, work, A).read_bytes() == A


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize(
    ("mode", "user", "shared"),
    [(0o444, OTHER_USER, True), (0o644, OTHER_USER, False), (0o555, OTHER_USER, False), (0o444, 0, False)],
)
def test_only_a_read_only_file_of_another_user_is_shared(
    tmp_path: Path, cache: InputCache, work: Path, mode: int, user: int, shared: bool
) -> None:
    add(cache, A)
    path = place(cache, work, A, mode, user)
    cached = tmp_path / "cache" / digest_of(A).removeprefix("sha256:")
    assert path.samefile(cached) is shared
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.stat().st_uid == (os.geteuid() if shared else user)  # a shared file is not theirs to change


def test_without_another_user_nothing_is_shared(cache: InputCache, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(cache, A)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    path = place(cache, work, A, 0o444, OTHER_USER)
    assert path.stat().st_nlink == 1


def test_another_file_system_gets_a_copy(cache: InputCache, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(cache, A)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "copy_file_range", refuse)
    assert place(cache, work, A, 0o444, 0 if os.geteuid() else OTHER_USER).read_bytes() == A


def test_the_least_recently_used_goes_first(cache: InputCache, work: Path) -> None:
    add(cache, A, B, C, D, E)
    place(cache, work, A)
    add(cache, F)
    assert missing(cache, A, B, C, D, E, F) == [B]
    assert cache.bytes_used == 50


def test_what_is_held_stays_and_what_does_not_fit_is_refused(cache: InputCache) -> None:
    add(cache, A, B, C, D, E)
    with cache.hold([digest_of(data) for data in (A, B, C, D, E)]) as absent:
        assert absent == []
        with pytest.raises(TooMuch, match="50 are in use"):
            add(cache, F)
        assert missing(cache, A, B, C, D, E) == []
    add(cache, F)
    assert missing(cache, A) == [A]


def test_two_holds_are_two(cache: InputCache) -> None:
    add(cache, A, B, C, D, E)
    with cache.hold([digest_of(A)]):
        with cache.hold([digest_of(A)]):
            pass
        add(cache, F)
        assert missing(cache, A) == []


@pytest.mark.parametrize("chunks", [[b"other"], [A, b"x"], [A[:-1]], []])
def test_wrong_bytes_are_not_kept(tmp_path: Path, cache: InputCache, chunks: list[bytes]) -> None:
    with pytest.raises(Invalid):
        cache.add(digest_of(A), len(A), chunks)
    assert cache.bytes_used == 0
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["boot"]


def test_a_file_larger_than_the_cache_is_refused_before_it_is_read(cache: InputCache) -> None:
    def never() -> Iterable[bytes]:
        raise AssertionError
        yield b""

    with pytest.raises(TooMuch):
        cache.add(digest_of(A), 51, never())


def test_files_on_their_way_count(cache: InputCache) -> None:
    add(cache, A, B, C, D, E)

    def chunks() -> Iterable[bytes]:
        assert cache.bytes_used <= 50
        add(cache, D)
        assert cache.bytes_used <= 50
        yield F

    cache.add(digest_of(F), len(F), chunks())
    assert missing(cache, F) == []


def test_a_restart_keeps_files_and_their_order_and_removes_leftovers(
    tmp_path: Path, cache: InputCache, work: Path
) -> None:
    add(cache, A, B, C, D, E)
    place(cache, work, A)
    for number, data in enumerate((B, C, D, E, A)):
        os.utime(tmp_path / "cache" / digest_of(data)[7:], (number, number))
    (tmp_path / "cache" / "new-7").write_bytes(b"half")
    again = InputCache(tmp_path / "cache", 50)
    assert again.bytes_used == 50
    assert not (tmp_path / "cache" / "new-7").exists()
    add(again, F)
    assert missing(again, A, B, C, D, E, F) == [B]
    smaller = InputCache(tmp_path / "cache", 20)
    assert smaller.bytes_used == 20


def test_after_a_restart_of_the_machine_files_are_verified_before_use(
    tmp_path: Path, cache: InputCache, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(cache, A, B)
    damaged = tmp_path / "cache" / digest_of(A)[7:]
    damaged.chmod(0o600)
    damaged.write_bytes(bytes(len(A)))  # as after a power cut
    damaged.chmod(0o444)
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(module, "BOOT", tmp_path / "boot")
    for _ in range(2):  # a restart of the agent before the first use changes nothing
        again = InputCache(tmp_path / "cache", 50)
    assert missing(again, A, B) == [A]
    assert again.bytes_used == len(B)
    monkeypatch.setattr(module, "_hash", None)  # verified once
    assert missing(again, B) == []
    assert missing(InputCache(tmp_path / "cache", 50), B) == []


class Crash(BaseException):
    """The process ends here."""


def crash_from(number: int, patches: pytest.MonkeyPatch) -> None:
    """The process ends at the call with this number, of those that change the disk: no later one happens."""
    calls = itertools.count(1)

    def patch(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def call(*given: object, **named: object) -> object:
            if next(calls) >= number:
                raise Crash
            return real(*given, **named)

        patches.setattr(owner, name, call)

    for name in ("write", "fchmod"):
        patch(os, name)
    for name in ("rename", "unlink", "write_text"):
        patch(Path, name)


def test_a_crash_at_every_step_leaves_whole_files(tmp_path: Path) -> None:
    number, crashed = 0, True
    while crashed:
        number += 1
        folder = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patches:
            crash_from(number, patches)
            try:
                add(InputCache(folder, 30), A, B, C, D)
                crashed = False
            except Crash:
                pass
        again = InputCache(folder, 30)
        assert again.bytes_used == sum(path.stat().st_size for path in folder.iterdir() if path.name != "boot") <= 30
        for path in folder.iterdir():
            assert path.name == "boot" or digest_of(path.read_bytes()) == f"sha256:{path.name}"
    assert number > 10


@given(steps=st.lists(st.tuples(st.sampled_from(["add", "hold", "release"]), st.integers(0, 9)), max_size=40))
def test_the_bound_holds_and_held_files_stay(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    cache = InputCache(tmp_path_factory.mktemp("cache"), 100)
    held: dict[int, object] = {}
    for action, number in steps:
        data = content(number, 10 + 3 * number)
        if action == "add":
            try:
                add(cache, data)
            except TooMuch:
                assert held
        elif action == "hold" and number not in held and not missing(cache, data):
            held[number] = hold = cache.hold([digest_of(data)])
            hold.__enter__()
        elif action == "release" and number in held:
            held.pop(number).__exit__(None, None, None)
        assert cache.bytes_used <= 100
        for kept in held:
            assert not missing(cache, content(kept, 10 + 3 * kept))


def test_many_threads_add_the_same_file_once(cache: InputCache) -> None:
    threads = [threading.Thread(target=add, args=(cache, A, B)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.bytes_used == len(A) + len(B)


def test_a_tree_is_filled_from_the_cache(tmp_path: Path, cache: InputCache) -> None:
    add(cache, A)
    manifest = Manifest(
        tuple(FileEntry(name, mode, len(A), digest_of(A)) for name, mode in (("x", 0o444), ("y", 0o755)))
    )
    with Unpack(tmp_path / "tree", manifest) as tree, cache.hold(tree.missing()):
        tree.place(digest_of(A), lambda target: cache.place(digest_of(A), target, user=os.geteuid()))
    assert [(path.read_bytes(), path.stat().st_nlink) for path in sorted((tmp_path / "tree").iterdir())] == [(A, 1)] * 2
