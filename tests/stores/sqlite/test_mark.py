"""The high-water mark: a database or log that lost acknowledged commits is refused, whatever happened to the files."""

import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from roost.ports.store import Damaged, Snapshot
from roost.stores.factory import read_place
from roost.stores.inspect import inspect
from roost.stores.sqlite import store as sqlite_store
from roost.stores.sqlite.file import FILE_NAME
from roost.stores.sqlite.mark import MARK_NAME, accept_database, read_mark
from roost.stores.sqlite.store import SqliteStore
from tests.stores.contract import must, put, refusal

COMMITS = 30
WAL_NAME = f"{FILE_NAME}-wal"
FRAME_BYTES = 4_096 + 24
WAL_HEADER_BYTES = 32

Harm = Callable[[Path], object]


def cut(name: str, share: float) -> Harm:
    """Keep this share of a file."""
    return lambda folder: os.truncate(folder / name, int((folder / name).stat().st_size * share))


def flip(name: str, offset: Callable[[int], int]) -> Harm:
    """Change one byte; `offset` of the size."""

    def harm(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[offset(len(content))] ^= 0x55
        (folder / name).write_bytes(content)

    return harm


def delete(*names: str) -> Harm:
    return lambda folder: [(folder / name).unlink() for name in names]


LOG_HARMS = {
    "deleted": delete(WAL_NAME),
    "emptied": cut(WAL_NAME, 0),
    "cut in the header": lambda folder: os.truncate(folder / WAL_NAME, WAL_HEADER_BYTES // 2),
    "cut after the header": lambda folder: os.truncate(folder / WAL_NAME, WAL_HEADER_BYTES),
    "half of it": cut(WAL_NAME, 0.5),
    "without its last byte": lambda folder: os.truncate(folder / WAL_NAME, (folder / WAL_NAME).stat().st_size - 1),
    "flipped in the header": flip(WAL_NAME, lambda size: 10),
    "flipped salt": flip(WAL_NAME, lambda size: 17),
    "flipped in the first frame's header": flip(WAL_NAME, lambda size: WAL_HEADER_BYTES + 5),
    "flipped in the first page": flip(WAL_NAME, lambda size: WAL_HEADER_BYTES + 24 + 1_000),
    "flipped in the middle": flip(WAL_NAME, lambda size: size // 2),
    "flipped in the last frame's header": flip(WAL_NAME, lambda size: size - FRAME_BYTES + 3),
    "flipped in the last byte": flip(WAL_NAME, lambda size: size - 1),
}
FILE_HARMS = {
    "deleted": delete(FILE_NAME),
    "deleted with its log": delete(FILE_NAME, WAL_NAME),
    "emptied": cut(FILE_NAME, 0),
    "emptied, and the log deleted": lambda folder: (cut(FILE_NAME, 0)(folder), delete(WAL_NAME)(folder)),
    "cut in the header, and the log deleted": lambda folder: (
        os.truncate(folder / FILE_NAME, 50),
        delete(WAL_NAME)(folder),
    ),
}


@pytest.fixture
async def crashed(data: Path, tmp_path: Path) -> AsyncIterator[Path]:
    """The files of a server that was killed: all commits are in the log."""
    store = SqliteStore(data)
    epoch = await must(store).lead("server-1")
    for number in range(COMMITS):
        await must(store).commit(epoch, [put(str(number), b"x" * 500)])
    copy = tmp_path / "crashed"
    shutil.copytree(data, copy)
    yield copy
    await store.close()


async def outcome(folder: Path) -> Snapshot | Damaged:
    store = SqliteStore(folder)
    try:
        found = await store.load()
        assert isinstance(found, Snapshot | Damaged)
        return found
    finally:
        await store.close()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "roost.lock"}


async def test_a_server_that_was_killed_has_everything(crashed: Path) -> None:
    found = await outcome(crashed)
    assert isinstance(found, Snapshot) and (found.revision, len(found.records)) == (COMMITS, COMMITS)


@pytest.mark.parametrize("harm", LOG_HARMS.values(), ids=LOG_HARMS.keys())
async def test_a_damaged_log_is_refused_and_left_as_it_is(crashed: Path, harm: Harm) -> None:
    harm(crashed)
    before = files(crashed)
    found = await outcome(crashed)
    assert isinstance(found, Damaged)
    assert "acknowledged" in found.reason and f"roost store repair {crashed}" in found.reason
    after = files(crashed)
    assert {name: after[name] for name in before if name != FILE_NAME} == {
        name: content for name, content in before.items() if name != FILE_NAME
    }
    assert isinstance(await outcome(crashed), Damaged), "also at the next start"


@pytest.mark.parametrize("harm", FILE_HARMS.values(), ids=FILE_HARMS.keys())
async def test_a_damaged_or_missing_database_is_refused(crashed: Path, harm: Harm) -> None:
    harm(crashed)
    found = await outcome(crashed)
    assert isinstance(found, Damaged)
    assert isinstance(await outcome(crashed), Damaged)


async def test_every_byte_of_the_log_is_guarded(crashed: Path, tmp_path: Path) -> None:
    """A flipped byte is refused, or every acknowledged record is there."""
    size = (crashed / WAL_NAME).stat().st_size
    for offset in range(0, size, size // 40):
        folder = tmp_path / f"at-{offset}"
        shutil.copytree(crashed, folder)
        flip(WAL_NAME, lambda _, offset=offset: offset)(folder)
        found = await outcome(folder)
        assert isinstance(found, Damaged) or (found.revision, len(found.records)) == (COMMITS, COMMITS), offset


async def test_a_database_of_another_directory_is_refused(crashed: Path, tmp_path: Path) -> None:
    other = SqliteStore(tmp_path / "other")
    epoch = await must(other).lead("server-2")
    for number in range(2 * COMMITS):
        await must(other).commit(epoch, [put(str(number))])
    await other.close()
    delete(WAL_NAME)(crashed)
    shutil.copy(tmp_path / "other" / FILE_NAME, crashed / FILE_NAME)
    found = await outcome(crashed)
    assert isinstance(found, Damaged) and "not the one that was here" in found.reason


async def copied(data: Path) -> Path:
    """A copy of the database after one commit of the first epoch."""
    store = SqliteStore(data)
    await must(store).commit(await must(store).lead("server-1"), [put("1")])
    await store.close()
    return Path(shutil.copy(data / FILE_NAME, data.parent / "older.db"))


async def test_an_older_copy_put_back_in_place_is_refused(data: Path) -> None:
    older = await copied(data)
    store = SqliteStore(data)
    await must(store).commit(await must(store).lead("server-1"), [put("2")])
    await store.close()
    shutil.copy(older, data / FILE_NAME)
    found = await outcome(data)
    assert isinstance(found, Damaged) and "1 acknowledged commits are missing" in found.reason


async def test_a_lost_epoch_is_refused(data: Path, store: SqliteStore) -> None:
    older = await copied(data)
    await must(store).lead("server-2")
    await store.close()
    shutil.copy(older, data / FILE_NAME)
    found = await outcome(data)
    assert isinstance(found, Damaged) and "its epoch is 1, and 2 was acknowledged" in found.reason


@pytest.mark.parametrize("content", [b"", b"roost mark 1 ", b"\0" * 100])
async def test_a_damaged_mark_is_refused(crashed: Path, content: bytes) -> None:
    (crashed / MARK_NAME).write_bytes(content)
    found = await outcome(crashed)
    assert isinstance(found, Damaged) and MARK_NAME in found.reason


@pytest.mark.parametrize("harm", [*LOG_HARMS.values(), delete(FILE_NAME, WAL_NAME)])
async def test_an_accepted_loss_is_not_refused_again(crashed: Path, harm: Harm) -> None:
    harm(crashed)
    accept_database(crashed)
    for _ in range(2):
        found = await outcome(crashed)
        assert isinstance(found, Snapshot) and found.revision < COMMITS


async def test_inspection_notices_a_missing_database(crashed: Path) -> None:
    delete(FILE_NAME, WAL_NAME)(crashed)
    with pytest.raises(Exception, match="its database is gone, and 30 commits were acknowledged"):
        await inspect(read_place(str(crashed)))


async def test_a_database_without_a_mark_gets_one(crashed: Path) -> None:
    delete(MARK_NAME)(crashed)
    assert isinstance(await outcome(crashed), Snapshot)
    mark = read_mark(crashed)
    assert mark is not None and (mark.revision, mark.epoch) == (COMMITS, 1)


async def test_the_mark_follows_commits_and_checkpoints(
    data: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_PAGES", 2)
    epoch = await must(store).lead("server-1")
    for number in range(5):
        await must(store).commit(epoch, [put(str(number))])
        mark = read_mark(data)
        assert mark is not None and (mark.revision, mark.epoch) == (number + 1, epoch)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


async def test_only_the_owner_reads_what_is_stored(data: Path, no_umask: None) -> None:
    """Also in a directory that was there, and of files that an earlier release made readable for all."""
    data.mkdir()
    for _ in range(2):
        store = SqliteStore(data)
        await must(store).commit(await must(store).lead("server-1"), [put("1")])
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()}
        await store.close()
        assert WAL_NAME in modes and set(modes.values()) == {0o600}, modes
        for path in data.iterdir():
            path.chmod(0o644)


async def test_a_store_that_is_refused_does_not_lead(crashed: Path) -> None:
    delete(WAL_NAME)(crashed)
    store = SqliteStore(crashed)
    assert isinstance(await refusal(must(store).lead("server-1")), Damaged)
    await store.close()
