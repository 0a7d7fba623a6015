"""The SQLite store keeps the contract, commits in groups, survives kill -9 and keeps other processes out."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from roost.ports.store import Change, StoreError, Unavailable
from roost.stores.group_commit import Weight
from roost.stores.sqlite import store as sqlite_store
from roost.stores.sqlite.store import SqliteStore
from tests.stores.contract import Opener, StoreContract, as_dict, must, put, refusal
from tests.stores.disk import Disk, Gate


class TestSqlite(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda place="here": SqliteStore(tmp_path / place)


def child(code: str, directory: Path) -> "subprocess.Popen[str]":
    """Another process with an open store; what it prints is read line by line."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


async def test_a_commit_is_answered_only_after_the_sync(disk: Disk, store: SqliteStore) -> None:
    epoch = await must(store).lead("server-1")
    disk.before_sync = gate = Gate()
    commit = asyncio.ensure_future(must(store).commit(epoch, [put("1")]))
    await asyncio.to_thread(gate.reached.wait, 30)
    assert not commit.done()
    gate.open()
    assert await commit == 1


async def test_commits_that_wait_share_one_sync(disk: Disk, store: SqliteStore) -> None:
    epoch = await must(store).lead("server-1")
    disk.before_sync = gate = Gate()
    disk.syncs = 0
    first = asyncio.ensure_future(must(store).commit(epoch, [put("first")]))
    await asyncio.to_thread(gate.reached.wait, 30)
    others = [asyncio.ensure_future(must(store).commit(epoch, [put(str(number))])) for number in range(100)]
    await asyncio.sleep(0)  # every commit has been called
    gate.open()
    assert [await first, *await asyncio.gather(*others)] == list(range(1, 102))
    assert disk.syncs == 2


async def test_a_group_has_a_limit(disk: Disk, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store._jobs, "_limit", Weight(10))
    epoch = await must(store).lead("server-1")
    disk.before_sync = gate = Gate()
    disk.syncs = 0
    first = asyncio.ensure_future(must(store).commit(epoch, []))
    await asyncio.to_thread(gate.reached.wait, 30)
    others = [asyncio.ensure_future(must(store).commit(epoch, [put("a"), put("b")])) for _ in range(10)]
    await asyncio.sleep(0)  # every commit has been called
    gate.open()
    await asyncio.gather(first, *others)
    assert disk.syncs == 3


async def test_the_log_does_not_grow_without_limit(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_PAGES", 50)
    epoch = await must(store).lead("server-1")
    for number in range(500):
        await must(store).commit(epoch, [put(str(number % 100), os.urandom(400)), put("large", os.urandom(8000))])
    log = tmp_path / "data" / "roost.db-wal"
    assert 50 * 4096 < log.stat().st_size < 100 * 4096
    assert (tmp_path / "data" / "roost.db").stat().st_size < 100 * 4096
    await store.close()
    assert not log.exists()


KILLED = """
import asyncio, itertools, os, sys
from pathlib import Path
from roost.ports.store import Change
from roost.stores.sqlite import store as sqlite_store

async def main():
    sqlite_store.CHECKPOINT_PAGES = 50
    store = sqlite_store.SqliteStore(Path(sys.argv[1]))
    epoch = (await store.lead("killed")).epoch
    numbers = itertools.count()
    async def work(task):
        for number in numbers:
            halves = [Change("half", f"{number}-{half}", b"%d" % number * 100) for half in "ab"]
            done = await store.commit(epoch, [halves[0], Change("task", str(task), b"%d" % number), halves[1]])
            os.write(1, b"%d %d\\n" % (number, done.revision))
    await asyncio.gather(*map(work, range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [1, 300, 1000])
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, lines: int) -> None:
    with child(KILLED, tmp_path / "data") as process:
        assert process.stdout is not None
        acknowledged = [next(process.stdout) for _ in range(lines)]
        process.kill()
        acknowledged += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    numbers, revisions = zip(*(map(int, line.split()) for line in acknowledged), strict=True)

    store = SqliteStore(tmp_path / "data")
    epoch = await must(store).lead("server-2")
    snapshot = await must(store).load()
    records = as_dict(snapshot)
    halves = {record for (kind, record) in records if kind == "half"}
    assert {f"{number}-{half}" for number in numbers for half in "ab"} <= halves
    assert {key.replace("-a", "-b") for key in halves} == {key for key in halves if key.endswith("b")}
    assert snapshot.revision >= max(revisions) and snapshot.revision == len(halves) / 2
    assert epoch == 2
    assert await must(store).commit(epoch, [put("after")]) == snapshot.revision + 1
    await store.close()


HOLDER = """
import asyncio, sys
from pathlib import Path
from roost.stores.sqlite.store import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.lead("server-1 on rack-7")
    print("holding", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path: Path, store: SqliteStore) -> None:
    with child(HOLDER, tmp_path / "data") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        for ask in (must(store).lead("server-2"), must(store).load()):
            error = await refusal(ask)
            assert isinstance(error, Unavailable)
            assert f"is in use by process {process.pid} (server-1 on rack-7)" in str(error)
            assert str(tmp_path / "data") in str(error)
        process.kill()
    assert await must(store).lead("server-2") == 2


async def test_a_second_store_in_the_same_process_is_kept_out(tmp_path: Path, store: SqliteStore) -> None:
    await must(store).load()
    other = SqliteStore(tmp_path / "data")
    assert f"is in use by process {os.getpid()}" in str(await refusal(must(other).lead("server-2")))
    await store.close()
    assert await must(other).lead("server-2") == 1
    await other.close()


async def test_nothing_is_touched_before_the_first_call(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data")
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_others_cannot_read_the_directory(tmp_path: Path, store: SqliteStore) -> None:
    await must(store).lead("server-1")
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0


def test_a_library_that_loses_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(StoreError, match="SQLite 3.51.2 .* 3.51.3 or newer"):
        SqliteStore(tmp_path)
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.3")
    SqliteStore(tmp_path)


def test_a_store_outlives_its_event_loop(disk: Disk, data: Path) -> None:
    """A loop that ends with commits under way takes neither them nor those of the next loop with it."""
    store = SqliteStore(data)
    gate = Gate()

    async def leave() -> int:
        epoch = await must(store).lead("server-1")
        disk.before_sync = gate
        commits = [asyncio.ensure_future(must(store).commit(epoch, [put("1")]))]
        await asyncio.to_thread(gate.reached.wait, 30)
        commits += [asyncio.ensure_future(must(store).commit(epoch, [put("2")]))]
        await asyncio.sleep(0)  # both have been called
        for commit in commits:
            commit.cancel()
        return epoch

    async def come_back(epoch: int) -> None:
        commit = asyncio.ensure_future(must(store).commit(epoch, [put("3")]))
        await asyncio.sleep(0)  # it waits beside the one whose caller is gone
        gate.open()
        assert await commit == 3
        assert len((await must(store).load()).records) == 3
        await store.close()

    asyncio.run(come_back(asyncio.run(leave())))


async def test_many_records_are_read_back(tmp_path: Path, store: SqliteStore) -> None:
    """How long this takes is measured by `roost bench run restart`."""
    epoch = await must(store).lead("server-1")
    for start in range(0, 20_000, 10_000):
        names = [f"web/unit-tests-{start + number}/0" for number in range(10_000)]
        await must(store).commit(epoch, [put(name, bytes(400)) for name in names])
    await store.close()
    again = SqliteStore(tmp_path / "data")
    await must(again).lead("server-1")
    assert len((await must(again).load()).records) == 20_000
    await again.close()


async def test_records_are_spread_over_statements_without_a_gap(store: SqliteStore) -> None:
    """One more and one less than each size of statement, for what is written and what is deleted."""
    epoch = await must(store).lead("server-1")
    for count in sorted({size + more for size in (*sqlite_store.CHUNKS, 128, 200) for more in (-1, 0, 1)}):
        everything = [Change("kind", str(number), b"%d" % number) for number in range(count)]
        await must(store).commit(epoch, everything)
        assert as_dict(await must(store).load()) == {change.record: change.value for change in everything}
        await must(store).commit(epoch, [replace(change, value=None) for change in everything])
        assert (await must(store).load()).records == []
