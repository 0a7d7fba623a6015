"""Opening a store by its URL: the one place that knows the schemes.

    DIRECTORY, sqlite:DIRECTORY              roost.db in a data directory
    memory:                                  nothing is kept
    postgresql://USER@HOST/DATABASE          one schema of a database, `roost` unless it ends with ?schema=NAME
    etcd://HOST:2379,HOST:2379/PREFIX        the keys below a prefix; docs/guides/etcd.md has the options

Drivers are imported only when their store is opened. No word that leaves this file holds a password.
"""

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from roost.model.errors import Invalid
from roost.ports.history import HistoryPages
from roost.ports.store import Store
from roost.stores.etcd.url import EtcdPlace, parse_etcd_url

FORMS = "a directory, sqlite:DIRECTORY, memory:, postgresql://USER@HOST/DATABASE or etcd://HOST:2379,HOST:2379/PREFIX"
FILE_NAME = "roost.db"
SCHEMA = "roost"

# Two letters at least: a single one is a drive to some, and never a store.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


class SqlitePlace(NamedTuple):
    directory: Path

    def __str__(self) -> str:
        return f"SQLite in {self.directory}"


class MemoryPlace(NamedTuple):
    def __str__(self) -> str:
        return "memory"


class PostgresPlace:
    """A schema of a database. Knows the password and never says it."""

    def __init__(self, dsn: str, schema: str, name: str) -> None:
        self.dsn, self.schema, self._name = dsn, schema, name

    def __str__(self) -> str:
        return self._name if self.schema == SCHEMA else f"{self._name}, schema {self.schema}"


Place = SqlitePlace | MemoryPlace | PostgresPlace | EtcdPlace


def open_store(url: str) -> Store:
    """The store at a URL; nothing is connected or touched before its first call. Raises Invalid, StoreError."""
    place = read_place(url)
    match place:
        case SqlitePlace():
            from roost.stores.sqlite.store import SqliteStore

            return SqliteStore(place.directory)
        case MemoryPlace():
            from roost.stores.memory import MemoryStore

            return MemoryStore()
        case PostgresPlace():
            from roost.stores.postgres.store import PostgresStore

            return PostgresStore(place.dsn, place.schema)
        case EtcdPlace():
            from roost.stores.etcd.store import EtcdStore

            return EtcdStore(place)


def open_history(url: str) -> HistoryPages | None:
    """Where servers that share this store keep their history; None: the store has no place for it. Raises Invalid."""
    place = read_place(url)
    if not isinstance(place, PostgresPlace):
        return None
    from roost.stores.postgres.history_pages import PostgresPages

    return PostgresPages(place.dsn, place.schema)


def read_place(url: str) -> Place:
    """The store of a URL. Raises Invalid without secrets in the message."""
    if not url or "\0" in url:
        raise Invalid("store", f"this is {FORMS}")
    if url in ("sqlite", "memory"):  # as `roost server --store` says it; a directory of that name is ./memory
        url += ":"
    found = _SCHEME.fullmatch(url)
    if found is None and "://" in url:
        raise Invalid("store", f"what is before :// is no store Roost knows; {FORMS}")
    if found is None:
        return _sqlite(url)
    match found[1].lower(), found[2]:
        case "sqlite", rest:
            return _sqlite(rest)
        case "memory", "" | "//":
            return MemoryPlace()
        case "memory", _:
            raise Invalid("store", "memory: has nothing after the colon, because nothing is kept")
        case "postgresql" | "postgres", rest:
            return _postgres(f"postgresql:{rest}")
        case "etcd", rest:
            return _etcd(f"etcd:{rest}")
    raise Invalid("store", f"{found[1]!r:.40} is no store Roost knows; {FORMS}")


def _sqlite(path: str) -> SqlitePlace:
    path = path.removeprefix("//")
    if not path:
        raise Invalid("store", "sqlite:DIRECTORY names the data directory, like sqlite:/var/lib/roost")
    directory = Path(path).expanduser()
    return SqlitePlace(directory.parent if directory.name == FILE_NAME and directory.is_file() else directory)


def _postgres(url: str) -> PostgresPlace:
    from roost.stores.postgres.connection import PostgresServer

    # The other options stay as they were written: PostgreSQL's own clients read them.
    base, _, query = url.partition("?")
    options = [option for option in query.split("&") if option]
    schemas = [unquote(option.removeprefix("schema=")) for option in options if option.startswith("schema=")]
    if len(schemas) > 1:
        raise Invalid("store", "the schema is given more than once")
    others = "&".join(option for option in options if not option.startswith("schema="))
    dsn, schema = f"{base}?{others}" if others else base, (schemas or [SCHEMA])[0]
    try:
        server = PostgresServer(dsn, schema)
    except ValueError as error:
        raise Invalid("store", str(error)) from None
    return PostgresPlace(dsn, schema, server.name)


def _etcd(url: str) -> EtcdPlace:
    try:
        return parse_etcd_url(url)
    except ValueError as error:
        raise Invalid("store", str(error)) from None
