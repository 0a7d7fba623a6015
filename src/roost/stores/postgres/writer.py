"""The writing side of the PostgreSQL store: one connection, one job at a time, nothing in doubt after a load."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from zlib import crc32

import asyncpg  # type: ignore[import-untyped]

from roost.ports import store as port
from roost.stores.group_commit import Outcome, Weight, committed, fenced, in_doubt, lead_changed, load_first
from roost.stores.postgres import follow
from roost.stores.postgres.connection import PostgresServer, passing
from roost.stores.postgres.rows import ABSENT, PackedCommit, RecordRows, Versions, pack
from roost.stores.sql import statement

# A server that hangs is given up after this long: a busy disk takes one second, and three hosts are tried in nine.
COMMIT_LIMIT_S = 10.0
CALL_LIMIT_S = 10.0  # lead, renew, and each step of a load

# Rows between two looks at the event loop while loading: some 10 ms.
LOAD_ROWS = 5_000

# What is kept for followers: some minutes of a busy server, longer than it takes to load. One that is further
# behind loads again.
LOG_COMMITS_MAX = 10_000
LOG_BYTES_MAX = 256 << 20

# The log is cut after so much was added, in bulk: a tenth of it, so it is never much longer than it should be.
TRIM_COMMITS = 1_000
TRIM_BYTES = 32 << 20

# Our own commits can only be behind once, after another server led; more often means that two use one epoch.
COMMIT_ATTEMPTS = 3

CONFLICT = "RS001"  # raised by commit_group


class PostgresWriter:
    """What is written, one job at a time. Connects on first use, and again after a failure."""

    def __init__(self, server: PostgresServer) -> None:
        self.versions = Versions()
        self._server = server
        self._connection: asyncpg.Connection | None = None
        self._failure: Exception | None = None  # no commit until the caller has loaded what is really there
        self._in_doubt: int | None = None  # the epoch of a commit that may still be on its way
        self._untrimmed_commits = TRIM_COMMITS  # an earlier leader may have left a long log
        self._untrimmed_bytes = 0

    def weigh(self, commit: PackedCommit) -> Weight:
        return Weight(len(commit.changes), len(commit.packed))

    async def perform(self, work: Callable[[], Awaitable[object]]) -> object:
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                return await work()
        except Exception as error:
            self._drop()
            return self._server.explain(error)

    async def lead(self, identity: str, seen: port.Lead | None) -> port.LeadTaken | port.Fenced:
        connection = await self._open()
        then = (None, None, None, None) if seen is None else (seen.epoch, seen.identity, seen.renewals, seen.successor)
        epoch = await connection.fetchval(statement("postgres", "lead"), identity, *then)
        if epoch is None:
            return lead_changed((await self._lead(connection))[0])
        return port.LeadTaken(int(epoch))

    async def renew(self, epoch: int, successor: str) -> port.LeadRenewed | port.Fenced:
        connection = await self._open()
        if await connection.fetchval(statement("postgres", "renew"), epoch, successor) is None:
            return fenced(epoch, (await self._lead(connection))[0])
        return port.LeadRenewed()

    async def commit(self, epoch: int, group: Sequence[PackedCommit]) -> Sequence[Outcome]:
        if self._failure is not None:
            return [load_first(self._failure)] * len(group)
        try:
            async with asyncio.timeout(COMMIT_LIMIT_S):
                return await self._transact(await self._open(), epoch, group)
        except Exception as error:
            self._failure = self._server.explain(error)
            self.versions.forget()
            self._drop()
            return [self._failure if self._in_doubt is None else in_doubt(self._failure)] * len(group)

    async def begin_load(self, connection: asyncpg.Connection) -> tuple[int, Exception | None]:
        """From here on the connection sees everything as of one revision, and no earlier commit can still happen."""
        if self._in_doubt is not None:
            await connection.fetchrow(statement("postgres", "seal"), self._in_doubt, pack([]))
            self._in_doubt = None
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return (await self._lead(connection))[1], self._failure

    async def load(self, connection: asyncpg.Connection, revision: int, failure: Exception | None) -> port.Snapshot:
        """Everything; `failure`: what a load makes good."""
        records: list[port.Change] = []
        versions: list[int] = []
        cursor = await connection.cursor("SELECT kind, key, version, checksum, value FROM records")
        while rows := await cursor.fetch(LOAD_ROWS, timeout=CALL_LIMIT_S):
            try:
                records += (_record(*row) for row in rows)
            except ValueError as error:
                self._failure = self._server.damaged(str(error))
                raise self._failure from error
            versions += (row["version"] for row in rows)
        existing = self.versions.revision
        if existing is None or revision >= existing:  # otherwise commits went on meanwhile, and we know better
            found = ((record.kind, record.key, version) for record, version in zip(records, versions, strict=True))
            self.versions.replace(revision, found)
        if self._failure is failure:  # otherwise it is newer than what was loaded
            self._failure = None
        return port.Snapshot(revision, records)

    async def raise_revision(self, epoch: int, revision: int) -> None:
        connection = await self._open()
        async with connection.transaction():
            # The row first: commits wait for it. The log has no gaps, so it begins anew.
            await connection.execute(
                "UPDATE lead SET revision = $2 WHERE epoch = $1 AND revision < $2", epoch, revision
            )
            await connection.execute("DELETE FROM log WHERE EXISTS (SELECT FROM lead WHERE epoch = $1)", epoch)

    async def tidy(self) -> None:
        """Cut off the oldest of the log when much was added. That it cannot be done is no reason to refuse commits."""
        if self._untrimmed_commits < TRIM_COMMITS and self._untrimmed_bytes < TRIM_BYTES or self._connection is None:
            return
        self._untrimmed_commits = self._untrimmed_bytes = 0
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                await self._connection.execute(statement("postgres", "trim"), LOG_COMMITS_MAX, LOG_BYTES_MAX)
        except Exception:
            self._drop()  # the next commit says what is wrong, if it still is

    async def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # it is given up in any case
                await self._connection.close(timeout=1)
            self._drop()

    async def _open(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._server.connect(COMMIT_LIMIT_S)
        return self._connection

    async def _transact(
        self, connection: asyncpg.Connection, epoch: int, group: Sequence[PackedCommit]
    ) -> Sequence[Outcome]:
        logged = [commit.packed for commit in group]
        for _ in range(COMMIT_ATTEMPTS):
            if self.versions.revision is None:
                await self._learn(connection)
            assert self.versions.revision is not None
            existing = self.versions.revision
            rows = self.versions.rows([commit.changes for commit in group])
            answer = await self._send(connection, epoch, existing, logged, rows)
            if answer["done"]:
                for revision, commit in enumerate(group, start=existing + 1):
                    self.versions.learn(revision, commit.changes)
                self._untrimmed_commits += len(group)
                self._untrimmed_bytes += sum(map(len, logged))
                return committed(existing + 1, len(group))
            if answer["leads"] != epoch or epoch < 1:
                return [fenced(epoch, port.Lead(answer["leads"], answer["leads_as"]))] * len(group)
            if answer["newest"] < existing:
                raise port.unavailable(
                    f"{self._server.name} is at revision {answer['newest']}, but {existing} was committed: was it "
                    "restored, or replaced by a standby that was behind? Load again"
                )
            await self._learn(connection)
        raise port.unavailable(f"another server commits to {self._server.name} with our epoch {epoch}; load again")

    async def _send(
        self, connection: asyncpg.Connection, epoch: int, existing: int, logged: list[bytes], rows: RecordRows
    ) -> asyncpg.Record:
        self._in_doubt = epoch
        try:
            answer = await connection.fetchrow(statement("postgres", "commit"), epoch, existing, logged, *rows)
        except asyncpg.PostgresError as error:
            if not passing(error):
                self._in_doubt = None  # the server refused
            if error.sqlstate == CONFLICT:
                raise await self._conflict(connection, rows) from error
            raise
        self._in_doubt = None
        return answer

    async def _conflict(self, connection: asyncpg.Connection, rows: RecordRows) -> Exception:
        found = await connection.fetchrow(statement("postgres", "conflict"), rows.kinds, rows.keys, rows.expected)
        message = "a record"
        if found is not None:
            version = "is gone" if found["version"] == ABSENT else f"has version {found['version']}"
            expected = "none" if found["expected"] == ABSENT else f"{found['expected']}"
            message = f"record {found['kind'].decode()} {found['key'].decode()} {version}, expected {expected}:"
        return port.StoreError(
            port.WriteConflict(
                f"{self._server.name}: {message} changed behind our back; nothing of this commit was kept, load again"
            )
        )

    async def _learn(self, connection: asyncpg.Connection) -> None:
        """Which versions are there: from the log since we last knew, or from all records.

        The revision is read first. Should there be more commits meanwhile, ours will find another revision than it
        knows, and learning them again from the log changes nothing.
        """
        existing = self.versions.revision
        if existing is not None:
            row = await connection.fetchrow(statement("postgres", "since"), existing, follow.NEWS_BYTES_MAX)
            reported = follow.reported(row, existing)
            if not isinstance(reported, port.Behind):
                for revision, changes in enumerate(reported, start=existing + 1):
                    self.versions.learn(revision, changes)
                return
        _, revision = await self._lead(connection)
        rows = await connection.fetch("SELECT kind, key, version FROM records")
        self.versions.replace(revision, ((kind.decode(), key.decode(), version) for kind, key, version in rows))

    async def _lead(self, connection: asyncpg.Connection) -> tuple[port.Lead, int]:
        """The lead, and the newest revision."""
        row = await connection.fetchrow("SELECT * FROM lead")
        return self._server.lead_of(row), row["revision"]

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _record(kind: bytes, key: bytes, version: int, checksum: int, value: bytes) -> port.Change:
    if checksum != crc32(value, version):
        raise ValueError(f"record {kind!r} {key!r} is not what was written")
    return port.Change(kind.decode(), key.decode(), value)
