"""Filling a store with everything of another one, or of a backup: marked until it is whole, and never at an older
revision than clients may have seen."""

import asyncio
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from roost.ports.store import ANYBODY, Change, Lead, SharedStore, Snapshot, Store, require, unavailable
from roost.stores.etcd.url import EtcdPlace
from roost.stores.factory import Place, PostgresPlace, SqlitePlace, open_store

# A commit of this size takes a good half second on a slow disk: between two of them the lead is renewed in time, and
# 100,000 records are 20 of them.
CHUNK_CHANGES = 5_000
CHUNK_BYTES = 8 << 20

# There from the first to the last commit. A server refuses a store with a kind of record that it does not know.
MARK = Change("unfinished copy", "run it again with --force", b"")

CALL_LIMIT_S = 10.0

Progress = Callable[[int, int], None]  # records done, of how many


class CopyResult(NamedTuple):
    revision: int
    records: int
    removed: int


async def fill(
    url: str, place: Place, records: Sequence[Change], revision: int, progress: Progress, seen: Lead | None = None
) -> CopyResult:
    """Make these records all that the store has. It ends at this revision, or at a later one if it was there already.

    No server may lead the store; `seen`: its lead when none did. Raises StoreError, Fenced if one leads by now; after
    any StoreError on the way: the store is then marked as unfinished, and can be filled again.
    """
    store = open_store(url)
    try:
        epoch = require(await store.lead("roost store", seen)).epoch
        before = require(await store.load())
        require(await store.commit(epoch, [MARK]))
        chunks = list(_chunks([*_outdated(before, records), *records, MARK._replace(value=None)]))
        if revision - len(chunks) > before.revision + 1:
            store = await _raised(store, url, place, epoch, revision - len(chunks))
        done = 0
        for chunk in chunks:
            newest = require(await store.commit(epoch, chunk)).revision
            if isinstance(store, SharedStore):
                require(await store.renew(epoch))
            done += len(chunk)
            progress(min(done, len(records)), len(records))
        found = require(await store.load())
        _compare(found, records)
        if isinstance(store, SharedStore):
            require(await store.renew(epoch, ANYBODY))
        return CopyResult(newest, len(records), len(before.records))
    finally:
        await store.close()


def is_unfinished(records: Sequence[Change]) -> bool:
    return any(record.kind == MARK.kind for record in records)


def _outdated(before: Snapshot, records: Sequence[Change]) -> list[Change]:
    wanted = {record[:2] for record in records}
    return [
        record._replace(value=None)
        for record in before.records
        if record[:2] not in wanted and record.kind != MARK.kind
    ]  # fmt: skip


def _chunks(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    start = size = 0
    for number, (kind, key, value) in enumerate(changes):
        if number - start >= CHUNK_CHANGES or (size >= CHUNK_BYTES and number > start):
            yield changes[start:number]
            start, size = number, 0
        size += len(kind) + len(key) + len(value or b"")
    yield changes[start:]


def _compare(found: Snapshot, records: Sequence[Change]) -> None:
    """Every record is there, byte by byte, and nothing else."""
    expected = {record[:2]: record.value for record in records}
    there = {record[:2]: record.value for record in found.records}
    for name in expected.keys() | there.keys():
        if expected.get(name) != there.get(name):
            kind, key = name
            raise unavailable(f"record {kind} {key} was not stored unchanged: stop other writers")


async def _raised(store: Store, url: str, place: Place, epoch: int, revision: int) -> Store:
    """The store at a later revision than it was, without commits in between: followers have to load again."""
    match place:
        case SqlitePlace():
            await store.close()  # the file has one user at a time
            await asyncio.to_thread(_raise_sqlite, place, revision)
            store = open_store(url)
        case PostgresPlace():
            await _raise_postgres(place, epoch, revision)
        case EtcdPlace():
            await _raise_etcd(place, epoch, revision)
    if require(await store.load()).revision != revision:  # it also tells the store where it is now
        raise unavailable("the revision of the store changed during the copy: stop other writers")
    return store


def _raise_sqlite(place: SqlitePlace, revision: int) -> None:
    import apsw

    from roost.stores.migrations import numbered
    from roost.stores.sqlite import file

    lock, path = file.take_lock(place.directory), place.directory / file.FILE_NAME
    try:
        database = file.open_database(path, numbered("sqlite"))
        try:
            database.execute("UPDATE meta SET revision = ?", (revision,))
        finally:
            database.close()
    except apsw.Error as error:
        raise file.explain(error, path) from error
    finally:
        os.close(lock)


async def _raise_postgres(place: PostgresPlace, epoch: int, revision: int) -> None:
    from roost.stores.postgres.connection import PostgresServer

    server = PostgresServer(place.dsn, place.schema)
    try:
        connection = await server.connect(CALL_LIMIT_S)
        try:
            async with connection.transaction():
                # The row first: commits wait for it. The log has no gaps, so it begins anew.
                await connection.execute(
                    "UPDATE lead SET revision = $2 WHERE epoch = $1 AND revision < $2", epoch, revision
                )
                await connection.execute("DELETE FROM log WHERE EXISTS (SELECT FROM lead WHERE epoch = $1)", epoch)
        finally:
            connection.terminate()
    except Exception as error:
        raise server.explain(error) from error


async def _raise_etcd(place: EtcdPlace, epoch: int, revision: int) -> None:
    from roost.stores.etcd import read, txn
    from roost.stores.etcd.client import EtcdClient
    from roost.stores.etcd.layout import Head, Layout
    from roost.wire import etcd_pb2 as pb

    client, layout = EtcdClient(place.endpoints, place.tls, place.user, place.password), Layout(place.prefix)
    try:
        seen = await read.read_lead(client, layout)
        assert seen.head.pending is None, "a small commit leaves nothing pending"
        # `since` says that nothing is known in between: followers load again.
        head = msgspec.json.encode(Head(revision, revision, epoch, secrets.token_hex(6)))
        request = pb.TxnRequest(
            compare=[txn.equals(layout.epoch, b"%d" % epoch), txn.equals(layout.head, seen.head_value)],
            success=[txn.put(layout.head, head)],
        )
        answer = await client.txn(request)
        if not answer.response.succeeded and not answer.repeated:
            raise unavailable("another process writes to this prefix of etcd; stop all servers that use it")
    finally:
        await client.close()
