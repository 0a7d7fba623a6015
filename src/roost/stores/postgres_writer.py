"""The writing side of the PostgreSQL store: one connection, one job at a time, nothing in doubt after a load."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from zlib import crc32

import asyncpg  # type: ignore[import-untyped]

from roost.ports.store import Behind, Change, Fenced, Lead, Snapshot, Unavailable
from roost.stores import postgres_follow
from roost.stores.postgres_rows import ABSENT, Commit, Rows, Versions, pack
from roost.stores.postgres_server import Server, passing
from roost.stores.sql import statement

# A server that hangs is given up after this long: a busy disk takes one second, and three hosts are tried in nine.
COMMIT_LIMIT_S = 10.0
CALL_LIMIT_S = 10.0  # lead, renew, and each step of a load

# Rows between two looks at the event loop while loading: some 10 ms.
LOAD_ROWS = 5_000

# What is kept for those who follow: some minutes of a busy server, longer than it takes to load. Whoever is further
# behind loads again.
LOG_COMMITS_MAX = 10_000
LOG_BYTES_MAX = 256 << 20

# The log is cut after so much was added, in bulk: a tenth of it, so it is never much longer than it should be.
TRIM_COMMITS = 1_000
TRIM_BYTES = 32 << 20

# Our own commits can only be behind once, after somebody else led; more often means that two use one epoch.
COMMIT_ATTEMPTS = 3

CONFLICT = "RS001"  # raised by commit_group

Outcome = int | Exception


class Writer:
    """What is written, one job at a time. Connects on first use, and again after a failure."""

    def __init__(self, server: Server) -> None:
        self.versions = Versions()
        self._server = server
        self._connection: asyncpg.Connection | None = None
        self._failure: Exception | None = None  # no commit until the caller has loaded what is really there
        self._in_doubt: int | None = None  # the epoch of a commit that may still be on its way
        self._untrimmed_commits = TRIM_COMMITS  # somebody before us may have left a long log
        self._untrimmed_bytes = 0

    async def perform(self, work: Callable[[], Awaitable[object]]) -> object:
        """Do it, or return what went wrong."""
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                return await work()
        except Fenced as error:
            return error
        except Exception as error:
            self._drop()
            return self._server.explain(error)

    async def lead(self, identity: str, seen: Lead | None) -> int:
        connection = await self._open()
        then = (None, None, None, None) if seen is None else (seen.epoch, seen.identity, seen.beat, seen.heir)
        epoch = await connection.fetchval(statement("postgres", "lead"), identity, *then)
        if epoch is None:
            now = await self._lead_now(connection)
            raise Fenced(f"{now.identity or 'nobody'} leads with epoch {now.epoch} by now")
        return int(epoch)

    async def renew(self, epoch: int, heir: str) -> None:
        connection = await self._open()
        if await connection.fetchval(statement("postgres", "renew"), epoch, heir) is None:
            now = await self._lead_now(connection)
            raise _fenced(epoch, now.epoch, now.identity)

    async def commit(self, group: Sequence[Commit]) -> Sequence[Outcome]:
        """One transaction; each commit's revision, or why it was refused."""
        if self._failure is not None:
            return [Unavailable(f"the last commit failed, load first: {self._failure}")] * len(group)
        try:
            async with asyncio.timeout(COMMIT_LIMIT_S):
                return await self._transact(await self._open(), group)
        except Exception as error:
            self._failure = self._server.explain(error)
            self.versions.forget()
            self._drop()
            return [self._failure] * len(group)

    async def begin_load(self, connection: asyncpg.Connection) -> tuple[int, Exception | None]:
        """From here on the connection sees everything as of one revision, and no earlier commit can still happen."""
        if self._in_doubt is not None:
            await connection.fetchrow(statement("postgres", "seal"), self._in_doubt, pack([]))
            self._in_doubt = None
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return await self._revision(connection), self._failure

    async def load(self, connection: asyncpg.Connection, revision: int, failure: Exception | None) -> Snapshot:
        """Everything; `failure`: what a load makes good."""
        records: list[Change] = []
        versions: list[int] = []
        cursor = await connection.cursor("SELECT kind, key, version, checksum, value FROM records")
        while rows := await cursor.fetch(LOAD_ROWS, timeout=CALL_LIMIT_S):
            try:
                records += (_record(*row) for row in rows)
            except ValueError as error:
                self._failure = self._server.damaged(str(error))
                raise self._failure from error
            versions += (row["version"] for row in rows)
        known = self.versions.revision
        if known is None or revision >= known:  # otherwise commits went on meanwhile, and we know better
            found = ((record.kind, record.key, version) for record, version in zip(records, versions, strict=True))
            self.versions.replace(revision, found)
        if self._failure is failure:  # otherwise it is newer than what was loaded
            self._failure = None
        return Snapshot(revision, records)

    async def trim(self) -> None:
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

    async def _transact(self, connection: asyncpg.Connection, group: Sequence[Commit]) -> Sequence[Outcome]:
        epoch = group[0].epoch
        logged = [commit.packed for commit in group]
        for _ in range(COMMIT_ATTEMPTS):
            if self.versions.revision is None:
                await self._learn(connection)
            assert self.versions.revision is not None
            known = self.versions.revision
            rows = self.versions.rows([commit.changes for commit in group])
            answer = await self._send(connection, epoch, known, logged, rows)
            if answer["done"]:
                for revision, commit in enumerate(group, start=known + 1):
                    self.versions.learn(revision, commit.changes)
                self._untrimmed_commits += len(group)
                self._untrimmed_bytes += sum(map(len, logged))
                return range(known + 1, known + len(group) + 1)
            if answer["leads"] != epoch or epoch < 1:
                return [_fenced(epoch, answer["leads"], answer["leads_as"])] * len(group)
            if answer["newest"] < known:
                raise Unavailable(
                    f"{self._server.name} is at revision {answer['newest']}, but {known} was committed: was it "
                    "restored, or replaced by a standby that was behind? Load again"
                )
            await self._learn(connection)
        raise Unavailable(f"somebody else commits to {self._server.name} with our epoch {epoch}; load again")

    async def _send(
        self, connection: asyncpg.Connection, epoch: int, known: int, logged: list[bytes], rows: Rows
    ) -> asyncpg.Record:
        self._in_doubt = epoch
        try:
            answer = await connection.fetchrow(statement("postgres", "commit"), epoch, known, logged, *rows)
        except asyncpg.PostgresError as error:
            if not passing(error):
                self._in_doubt = None  # the server has said no
            if error.sqlstate == CONFLICT:
                raise await self._conflict(connection, rows) from error
            raise
        self._in_doubt = None
        return answer

    async def _conflict(self, connection: asyncpg.Connection, rows: Rows) -> Exception:
        found = await connection.fetchrow(statement("postgres", "conflict"), rows.kinds, rows.keys, rows.expected)
        words = "a record"
        if found is not None:
            version = "is gone" if found["version"] == ABSENT else f"has version {found['version']}"
            expected = "none" if found["expected"] == ABSENT else f"{found['expected']}"
            words = f"record {found['kind'].decode()} {found['key'].decode()} {version}, expected {expected}:"
        return Unavailable(
            f"{self._server.name}: {words} changed behind our back; nothing of this commit was kept, load again"
        )

    async def _learn(self, connection: asyncpg.Connection) -> None:
        """Which versions are there: from the log since we last knew, or from all records.

        The revision is read first. Should there be more commits meanwhile, ours will find another revision than it
        knows, and learning them again from the log changes nothing.
        """
        known = self.versions.revision
        if known is not None:
            row = await connection.fetchrow(statement("postgres", "since"), known, postgres_follow.NEWS_BYTES_MAX)
            with contextlib.suppress(Behind):
                for revision, changes in enumerate(postgres_follow.told(row, known), start=known + 1):
                    self.versions.learn(revision, changes)
                return
        revision = await self._revision(connection)
        rows = await connection.fetch("SELECT kind, key, version FROM records")
        self.versions.replace(revision, ((kind.decode(), key.decode(), version) for kind, key, version in rows))

    async def _revision(self, connection: asyncpg.Connection) -> int:
        revision = await connection.fetchval("SELECT revision FROM lead")
        if revision is None:
            raise self._server.damaged("it does not say who leads")
        return int(revision)

    async def _lead_now(self, connection: asyncpg.Connection) -> Lead:
        row = await connection.fetchrow("SELECT epoch, identity, beat, heir FROM lead")
        if row is None:
            raise self._server.damaged("it does not say who leads")
        return Lead(*row)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _record(kind: bytes, key: bytes, version: int, checksum: int, value: bytes) -> Change:
    if checksum != crc32(value, version):
        raise ValueError(f"record {kind!r} {key!r} is not what was written")
    return Change(kind.decode(), key.decode(), value)


def _fenced(epoch: int, leads: int, identity: str) -> Fenced:
    return Fenced(f"epoch {epoch} may not commit: {identity or 'nobody'} leads with epoch {leads}")
