"""The SQLite store on a full, failing or lying disk and on files it must not touch: nothing half-done, plain words."""

import asyncio
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from roost.ports.store import Change, Damaged, InDoubt, Snapshot, StoreError, Unavailable
from roost.stores.group_commit import in_doubt
from roost.stores.sqlite import file as file_module
from roost.stores.sqlite import store as sqlite_store
from roost.stores.sqlite.store import SqliteStore
from tests.stores.contract import as_dict, must, outcomes_of, put, refusal
from tests.stores.disk import Disk, Gate, written

PAGE = 4096


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x55
    path.write_bytes(content)


# A disk that does not take what it is given


def write_fails(disk: Disk, error: Exception) -> None:
    def fail(name: str) -> None:
        raise error

    disk.before_write = fail


def sync_fails(disk: Disk, error: Exception) -> None:
    def fail(name: str) -> None:
        raise error

    disk.before_sync = fail


@pytest.mark.parametrize(
    ("break_it", "error", "message"),
    [
        (write_fails, apsw.FullError(), "no space left for"),
        (write_fails, apsw.IOError(), "cannot read or write"),
        (write_fails, apsw.ReadOnlyError(), "cannot open"),
        (sync_fails, apsw.IOError(), "cannot read or write"),
    ],
    ids=["full", "write-error", "read-only", "sync-error"],
)
async def test_a_commit_that_fails_is_reported_and_the_next_needs_a_load(
    disk: Disk,
    data: Path,
    store: SqliteStore,
    break_it: Callable[[Disk, Exception], None],
    error: Exception,
    message: str,
) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1")])
    break_it(disk, error)
    failure = await refusal(must(store).commit(epoch, [put("1", b"lost"), put("2", b"lost")]))
    assert isinstance(failure, InDoubt)
    assert message in str(failure) and str(data / "roost.db") in str(failure)
    disk.before_write = disk.before_sync = lambda name: None  # the disk is well again, but we do not know what it has

    refused = await refusal(must(store).commit(epoch, [put("3", b"lost")]))
    assert isinstance(refused, Unavailable) and message in str(refused) and "load first" in str(refused)
    new = await must(store).lead("server-1")
    assert isinstance(await refusal(must(store).commit(new, [put("3", b"lost")])), Unavailable)

    snapshot = await must(store).load()
    assert ("instance", "3") not in as_dict(snapshot)
    if break_it is write_fails:
        assert snapshot == Snapshot(1, [put("1")])
    assert await must(store).commit(new, [put("4")]) == snapshot.revision + 1
    await store.close()
    again = SqliteStore(data)
    assert as_dict(await must(again).load()) == as_dict(snapshot) | {("instance", "4"): b"value"}
    await again.close()


async def test_a_group_fails_together_and_what_comes_after_it_too(disk: Disk, store: SqliteStore) -> None:
    epoch = await must(store).lead("server-1")
    gate = Gate()

    def wait_and_fail(name: str) -> None:
        gate(name)
        raise apsw.FullError

    disk.before_write = wait_and_fail
    first = asyncio.ensure_future(must(store).commit(epoch, [put("1")]))
    await asyncio.to_thread(gate.reached.wait, 30)
    others = [asyncio.ensure_future(must(store).commit(epoch, [put(str(number))])) for number in range(10)]
    await asyncio.sleep(0)  # every commit has been called
    gate.open()
    outcomes = await outcomes_of(first, *others)
    assert [type(outcome) for outcome in outcomes] == [InDoubt] + [Unavailable] * 10
    assert await must(store).load() == Snapshot(0, [])


async def test_no_room_for_a_checkpoint_is_no_reason_to_refuse_commits(
    disk: Disk, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_PAGES", 5)
    epoch = await must(store).lead("server-1")

    def file_is_full(name: str) -> None:
        if name.endswith(".db"):
            raise apsw.FullError

    disk.before_write = file_is_full
    for number in range(20):
        assert await must(store).commit(epoch, [put(str(number), bytes(3000))]) == number + 1
    disk.before_write = lambda name: None
    assert len((await must(store).load()).records) == 20


async def test_a_checkpoint_that_fails_stops_the_commits(
    disk: Disk, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_PAGES", 1)
    epoch = await must(store).lead("server-1")

    def file_is_broken(name: str) -> None:
        if name.endswith(".db"):
            raise apsw.IOError

    disk.before_write = file_is_broken
    assert await must(store).commit(epoch, [put("1")]) == 1
    assert isinstance(await refusal(must(store).commit(epoch, [put("2")])), Unavailable)
    disk.before_write = lambda name: None
    assert await must(store).load() == Snapshot(1, [put("1")])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("may not mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(600_000))
    store = SqliteStore(small_disk / "data")
    epoch = await must(store).lead("server-1")
    revision = 0
    with pytest.raises(StoreError, match="no space left .* make room"):
        while revision < 1000:
            revision = await must(store).commit(epoch, [put(f"{revision}-{half}", os.urandom(2000)) for half in "ab"])
    assert revision > 10
    snapshot = await must(store).load()
    assert (snapshot.revision, len(snapshot.records)) == (revision, 2 * revision)

    filler.unlink()
    assert await must(store).commit(epoch, [put("after")]) == revision + 1
    await store.close()
    again = SqliteStore(small_disk / "data")
    assert len((await must(again).load()).records) == 2 * revision + 1
    await again.close()


async def test_a_limit_on_the_size_of_files(data: Path, store: SqliteStore) -> None:
    epoch = await must(store).lead("server-1")
    await must(store).commit(epoch, [put("1")])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        failure = await refusal(
            must(store).commit(epoch, [put(str(number), os.urandom(1000)) for number in range(1000)])
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(failure, InDoubt) and str(data / "roost.db") in str(failure)
    assert await must(store).load() == Snapshot(1, [put("1")])
    assert await must(store).commit(epoch, [put("2")]) == 2


# Files that are not what was written


MANY = [put(f"web/{number}", bytes([number % 256]) * 400) for number in range(500)]


async def test_a_flipped_byte_in_the_header_is_damage(data: Path, store: SqliteStore) -> None:
    path = await written(data, MANY)
    flip(path, 3)
    for ask in (store.load, lambda: must(store).lead("server-1")):
        failure = await refusal(ask())
        assert isinstance(failure, Damaged)
        assert str(path) in str(failure) and "restore the last backup" in str(failure)
    flip(path, 3)
    assert len((await must(store).load()).records) == 500  # the store can be asked again once the file is right


async def test_a_file_that_was_refused_is_not_held_on_to(data: Path, store: SqliteStore) -> None:
    path = await written(data, MANY)
    flip(path, 3)
    assert isinstance(await refusal(must(store).load()), Damaged)
    flip(path, 3)
    other = SqliteStore(data)
    assert len((await must(other).load()).records) == 500
    await other.close()


@pytest.mark.parametrize("clean_large", [False, True], ids=["checked", "not-checked"])
async def test_a_flipped_byte_anywhere_is_found_or_harmless(
    data: Path, monkeypatch: pytest.MonkeyPatch, clean_large: bool
) -> None:
    """A large file is not checked as a whole; then at least no value that was altered is handed out."""
    path = await written(data, MANY, [Change("instance", f"web/{number}", None) for number in range(0, 500, 7)])
    store = SqliteStore(data)
    expected = await must(store).load()
    await store.close()
    if clean_large:
        monkeypatch.setattr(file_module, "CHECK_BYTES_MAX", 0)
    found = 0
    for offset in range(PAGE + 50, path.stat().st_size, 4999):
        flip(path, offset)
        store = SqliteStore(data)
        try:
            values = {(change.key, change.value) for change in (await must(store).load()).records}
            assert clean_large or len(values) == len(expected.records)
            assert {value for _, value in values} <= {change.value for change in expected.records}
        except StoreError as error:
            assert isinstance(error.failure, Damaged) and str(path) in str(error)
            found += 1
        await store.close()
        flip(path, offset)
    assert found > 20


async def test_a_value_that_was_altered_is_named(data: Path, store: SqliteStore) -> None:
    path = await written(data, [put("good"), put("bad", b"needle" * 10)])
    flip(path, path.read_bytes().index(b"needle") + 20)
    failure = await refusal(must(store).load())
    assert isinstance(failure, Damaged) and "record instance bad is not what was written" in str(failure)
    epoch = await must(store).lead("server-1")
    assert isinstance(await refusal(must(store).commit(epoch, [put("more")])), Unavailable)


async def test_an_index_that_disagrees_with_its_rows_is_damage(data: Path, store: SqliteStore) -> None:
    path = await written(data, [put("needle"), put("other")])
    content = path.read_bytes()
    assert content.count(b"needle") == 2  # in the row and in the index
    flip(path, content.rindex(b"needle"))
    assert isinstance(await refusal(must(store).load()), Damaged)


@pytest.mark.parametrize(
    "content",
    [b"not a database, but long enough to be one" * 200, b"\0" * 8192, b"S"],
    ids=["text", "zeros", "short"],
)
async def test_a_file_that_is_no_database_is_left_alone(data: Path, store: SqliteStore, content: bytes) -> None:
    data.mkdir()
    path = data / "roost.db"
    path.write_bytes(content)
    failure = await refusal(must(store).lead("server-1"))
    assert isinstance(failure, Damaged) and str(path) in str(failure)
    assert path.read_bytes() == content


async def test_a_file_that_was_cut_off_is_damage(data: Path, store: SqliteStore) -> None:
    path = await written(data, MANY)
    os.truncate(path, path.stat().st_size // 2 // PAGE * PAGE)
    assert isinstance(await refusal(must(store).load()), Damaged)


async def test_a_database_of_another_program_is_left_alone(data: Path, store: SqliteStore) -> None:
    data.mkdir()
    path = data / "roost.db"
    with apsw.Connection(str(path)) as theirs:
        theirs.execute("CREATE TABLE theirs (x)")
    theirs.close()
    content = path.read_bytes()
    failure = await refusal(must(store).lead("server-1"))
    assert isinstance(failure, Damaged) and "not one of Roost's" in str(failure)
    assert path.read_bytes() == content


async def test_a_file_that_another_program_writes_to_is_refused(data: Path, store: SqliteStore) -> None:
    path = await written(data, MANY)
    theirs = apsw.Connection(str(path))
    theirs.execute("BEGIN IMMEDIATE")
    failure = await refusal(must(store).load())
    assert isinstance(failure, Unavailable) and "another program" in str(failure)
    theirs.close()
    assert len((await must(store).load()).records) == 500


async def test_a_path_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        store = SqliteStore(directory)
        failure = await refusal(must(store).load())
        assert isinstance(failure, Unavailable) and f"cannot use {directory}" in str(failure)
        await store.close()


async def test_a_large_file_is_checked_only_after_an_unclean_end(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Path] = []
    monkeypatch.setattr(file_module, "check", lambda database, path: checked.append(path))
    monkeypatch.setattr(file_module, "CHECK_BYTES_MAX", 10 * PAGE)
    path = await written(data, MANY)
    checked.clear()

    store = SqliteStore(data)
    await must(store).commit(await must(store).lead("server-1"), [put("in the log")])
    assert checked == []
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for file in data.iterdir():  # as it is in the middle of a run
        (crashed / file.name).write_bytes(file.read_bytes())
    await store.close()

    store = SqliteStore(crashed)
    assert len((await must(store).load()).records) == 501
    assert checked == [crashed / path.name]
    await store.close()


def test_an_error_that_may_be_in_doubt_does_not_claim_what_became_of_the_commit(tmp_path: Path) -> None:
    error = in_doubt(file_module.explain(apsw.FullError("full"), tmp_path / "roost.db"))
    assert isinstance(error, StoreError) and isinstance(error.failure, InDoubt)
    assert "no space left" in error.failure.reason and "kept" not in error.failure.reason
