"""The server of the PostgreSQL store: connected to, checked and migrated, or refused with a message to act on."""

import asyncio
import re
import ssl
import urllib.parse
from collections.abc import Sequence
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from roost.ports.store import Damaged, Lead, StoreError, Unavailable, unavailable
from roost.stores.migrations import Migration, numbered
from roost.stores.sql import statement

# Everything used here is in 13; older versions get no repairs.
VERSION_MIN = 13

# Per host, and the first may be the one that hangs: three of them stay below the limit of a commit.
CONNECT_LIMIT_S = 3.0

# What plain SQL names may be, without quotes, and no longer than PostgreSQL keeps them.
SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")

# Every statement finds its rows by key, whatever the planner believes about a table that was empty when it planned.
# A plan is made once per connection, not once per commit.
PLANNING = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

SERVER_GONE = "08"  # class of SQLSTATE: connection exceptions
SERVER_BUSY = "53"  # insufficient resources: disk, memory, connections
SERVER_LEAVING = "57P"  # shutting down, crashed, starting up

DENIALS = (
    asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError,
)  # fmt: skip

# The first that matches counts.
MESSAGES: list[tuple[Any, str]] = [
    (asyncpg.DiskFullError, "no space left on the server of {name}; make room: a running server goes on by itself"),
    (
        asyncpg.ReadOnlySQLTransactionError | asyncpg.TargetServerAttributeNotMatched,
        "{name} can only be read; is it a standby, or has it been set read-only?",
    ),
    (
        asyncpg.QueryCanceledError | TimeoutError,
        "{name} did not answer in time; check the server's load, locks and network",
    ),
    (
        asyncpg.CannotConnectNowError | asyncpg.AdminShutdownError | asyncpg.CrashShutdownError,
        "{name} is starting or stopping ({error}); Roost goes on when it is back",
    ),
    (asyncpg.TooManyConnectionsError, "{name} takes no more connections ({error}); raise max_connections"),
    (
        asyncpg.InvalidPasswordError | asyncpg.InvalidAuthorizationSpecificationError,
        "{name} refused the user ({error}); check the role, its password, pg_hba.conf",
    ),
    (
        asyncpg.InvalidCatalogNameError,
        "{name} has no such database ({error}); create it: docs/guides/postgres.md",
    ),
    (
        asyncpg.InsufficientPrivilegeError,
        "{name}: the role may not do this ({error}); it has to own schema {schema} or may create it: "
        "docs/guides/postgres.md",
    ),
    (ssl.SSLError, "no trusted connection to {name} ({error}); check sslmode and certificates"),
    (
        asyncpg.PostgresConnectionError | asyncpg.InterfaceError | OSError,
        "the connection to {name} failed ({error}); check that it runs and is reached",
    ),
    (asyncpg.PostgresError, "{name} refused ({state}: {error}); see the server's log"),
    (asyncpg.InternalClientError, "{name} says what this client does not understand ({error})"),
]


class PostgresServer:
    """Where the store lies. Knows the password and never says it."""

    def __init__(self, dsn: str, schema: str) -> None:
        if not SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):
            raise ValueError(
                f"schema {schema!r}: a name has small letters, digits and _, begins with a letter and has at most "
                "63 of them; pg_ is PostgreSQL's own"
            )
        hosts, self.name = _read(dsn)
        self.schema = schema
        self._dsns = hosts

    def __repr__(self) -> str:
        return f"<{self.name} schema {self.schema}>"

    async def connect(self, limit_s: float) -> asyncpg.Connection:
        """A connection to a server that can be written, its schema as this release knows it. Statements that take
        longer than the limit are ended by the server too, so that nothing happens after the client has given up."""
        connection = await self._reach(limit_s)
        try:
            async with asyncio.timeout(limit_s):
                await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _prepare(self, connection: asyncpg.Connection) -> None:
        version = connection.get_server_version()
        if version.major < VERSION_MIN:
            raise unavailable(f"{self.name} is PostgreSQL {version.major}; {VERSION_MIN} or newer is needed")
        if await connection.fetchval("SHOW synchronous_commit") == "off":
            await connection.execute("SET synchronous_commit = on")
        await _migrate(connection, self, numbered("postgres"))

    async def _reach(self, limit_s: float) -> asyncpg.Connection:
        settings = {
            "application_name": "roost",
            "search_path": self.schema,
            "statement_timeout": str(round(limit_s * 1_000)),
            **PLANNING,
        }
        for dsn in self._dsns:
            try:
                return await asyncpg.connect(
                    dsn, timeout=CONNECT_LIMIT_S, target_session_attrs="read-write", server_settings=settings
                )
            except Exception as error:
                if dsn is self._dsns[-1] or not passing(error):
                    raise
        raise AssertionError("there is always a host")

    def explain(self, error: Exception) -> Exception:
        """The StoreError for an error of PostgreSQL, its client or the system. Any other is a defect and stays."""
        if isinstance(error, StoreError | asyncpg.DataError):
            return error
        if isinstance(error, asyncpg.DataCorruptedError | asyncpg.IndexCorruptedError):
            explained = self.damaged(str(error))
        else:
            found = next((text for kinds, text in MESSAGES if isinstance(error, kinds)), None)
            if found is None:
                return error
            state = getattr(error, "sqlstate", "")
            text = found.format(name=self.name, schema=self.schema, error=error, state=state)
            explained = StoreError(Unavailable(text, denied=isinstance(error, DENIALS)))
        explained.__cause__ = error
        return explained

    def lead_of(self, row: asyncpg.Record | None) -> Lead:
        """The lead in a row that has its columns. Raises StoreError."""
        if row is None:
            raise self.damaged("it does not say who leads")
        return Lead(row["epoch"], row["identity"], row["renewals"], row["successor"])

    def damaged(self, what: str) -> StoreError:
        return StoreError(
            Damaged(f"{self.name} is damaged: {what}. Save a pg_dump, then restore a backup: docs/guides/postgres.md")
        )


def passing(error: Exception) -> bool:
    """Whether it may be well again by itself: a server that restarts, a network that is away."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith((SERVER_GONE, SERVER_BUSY, SERVER_LEAVING, "57014"))
    if isinstance(error, ssl.SSLCertVerificationError):
        return False
    connection = asyncpg.InterfaceError | asyncpg.TargetServerAttributeNotMatched | OSError | TimeoutError
    return isinstance(error, connection) and not isinstance(error, asyncpg.ClientConfigurationError)


def _read(dsn: str) -> tuple[list[str], str]:
    """The URL once per host (a host that hangs must not use up the others' time), and a name without secrets."""
    wrong = "the store's URL is not postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    try:
        url = urllib.parse.urlsplit(dsn)
        options = dict(urllib.parse.parse_qsl(url.query, strict_parsing=bool(url.query)))
    except ValueError:
        raise ValueError(wrong) from None  # its message would show parts of the URL
    if url.scheme not in ("postgresql", "postgres"):
        raise ValueError(wrong)
    # "p/w" or "p@w" unescaped would make a part of the password a host name, and hosts are shown.
    user, _, listed = url.netloc.rpartition("@")
    if "@" in user + url.path or url.fragment or ("@" in url.query and not user):
        raise ValueError(f"{wrong}: write a / ? # or @ in the password as %2F %3F %23 %40")
    hosts = listed.split(",")
    for host in hosts:
        port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
        if port and not port.isdigit():
            raise ValueError(f"{wrong}: a port is a number")
    item = [url._replace(netloc=f"{user}@{host}" if user else host).geturl() for host in hosts]
    shown = listed or options.get("host", "the local socket")
    return item, f"PostgreSQL {shown}{url.path}"


async def _migrate(connection: asyncpg.Connection, server: PostgresServer, migrations: Sequence[Migration]) -> None:
    """Run what is missing, all of it or nothing. Servers that start at once wait for each other."""
    if await _version(connection, server) == len(migrations):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"roost {server.schema}")
        version = await _version(connection, server)
        if version > len(migrations):
            raise unavailable(
                f"{server.name}, schema {server.schema}, has version {version}, this release of Roost knows versions "
                f"up to {len(migrations)}; use the newer release that wrote it, or restore a backup made before the "
                "upgrade"
            )
        if version == 0:
            await _prepare(connection, server)
        for migration in migrations[version:]:
            try:
                await connection.execute(migration.sql)
            except asyncpg.PostgresError as error:
                if passing(error):
                    raise
                raise unavailable(
                    f"{server.name}, schema {server.schema}, stays at version {version}: {migration.name} failed "
                    f"({error}); nothing was changed. Does something else use this schema?"
                ) from error
            await connection.execute(
                "INSERT INTO migrations (version, name) VALUES ($1, $2)", migration.version, migration.name
            )


async def _prepare(connection: asyncpg.Connection, server: PostgresServer) -> None:
    there = await connection.fetchrow(statement("postgres", "migrated"), server.schema)
    assert there is not None
    if not there["schema"]:  # asked first: IF NOT EXISTS needs the right to create one even if it is there
        await connection.execute(f"CREATE SCHEMA {server.schema}")
    await connection.execute(statement("postgres", "migrations"))


async def _version(connection: asyncpg.Connection, server: PostgresServer) -> int:
    there = await connection.fetchrow(statement("postgres", "migrated"), server.schema)
    assert there is not None
    if not there["migrations"]:
        return 0
    return int(await connection.fetchval("SELECT coalesce(max(version), 0) FROM migrations"))
