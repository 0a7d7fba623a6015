"""The file of the SQLite store: locked, checked, migrated and opened, or refused with a message to act on."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import apsw

from roost.ports.store import Damaged, StoreError, unavailable
from roost.stores.migrations import Migration
from roost.stores.sqlite.high_water import Acknowledged
from roost.stores.sqlite.mark import compare, read_mark, sync_directory

FILE_NAME = "roost.db"
LOCK_NAME = "roost.lock"
LOCK_TEXT_MAX = 1_000

# Older libraries can corrupt the file when the write-ahead log starts over (fixed in 3.51.3).
SQLITE_VERSION_MIN = (3, 51, 3)

# In the file's header ("Rst1"), so that a wrong path does not migrate a file of another program.
APPLICATION_ID = 0x52737431

HEADER_BYTES = 100

IDENTITY_VERSION = 2  # the migration that added the identity

# Checking the whole file takes 1 to 2 ms per MB: done at every start up to this size (some 140,000 records, 0.1 s), and
# above it only when the last run did not end cleanly.
CHECK_BYTES_MAX = 64 << 20

# Exclusive: no other process can keep the log from being reset, and a commit needs no file locks (15 % less CPU).
# The log is kept at its size and written over: a file that grows makes every fsync twice as expensive.
# 16 MB of cache hold the pages that change often; a log that one huge commit made large is cut back to 64 MB.
PRAGMAS = (
    "journal_mode = wal",
    "synchronous = full",
    "wal_autocheckpoint = 0",
    "journal_size_limit = 67108864",
    "cache_size = -16384",
    "temp_store = memory",
)


def require_library() -> None:
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")) < SQLITE_VERSION_MIN:
        wanted = ".".join(map(str, SQLITE_VERSION_MIN))
        raise unavailable(f"SQLite {version} can corrupt a store; {wanted} or newer is needed: pip install -U apsw")


def take_lock(directory: Path) -> int:
    """Make the directory if need be. It is ours while the descriptor is open; the system closes it when we die."""
    path = directory / LOCK_NAME
    try:
        _make(directory)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise unavailable(f"cannot use {directory}: {error.strerror}; check the path and its permissions") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = lock_holder(descriptor)
        os.close(descriptor)
        raise unavailable(
            f"{directory} is in use by {holder}; stop that server or give this one another data directory"
        ) from error
    sign_lock(descriptor, "")
    return descriptor


def sign_lock(descriptor: int, identity: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {identity}".encode(errors="replace"), 0)


def lock_holder(descriptor: int) -> str:
    pid, _, identity = os.pread(descriptor, LOCK_TEXT_MAX, 0).decode(errors="replace").partition(" ")
    return f"process {pid or 'unknown'}" + (f" ({identity})" if identity else "")


def open_database(path: Path, migrations: Sequence[Migration]) -> apsw.Connection:
    """A connection to a sound database of the newest version. Closes what it opened when it refuses."""
    unclean = _size(path.with_name(path.name + "-wal")) > 0  # a clean end removes the log
    if 0 < _size(path) < HEADER_BYTES and not unclean:
        raise damaged(path, "it is too short to be a database")  # SQLite would begin a new one in its place
    mark = read_mark(path.parent)
    if not _size(path):
        compare(path.parent, mark, None)
    try:
        make_private(path)
        database = apsw.Connection(str(path))
    except (apsw.Error, OSError) as error:
        raise explain(error, path) from error
    try:
        # A database that is refused is left as it is: closing it would write back a part of the log and remove it.
        database.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        database.execute("PRAGMA locking_mode = exclusive").fetchall()
        _recognise(database, path, newest=len(migrations))
        for pragma in PRAGMAS:
            database.execute(f"PRAGMA {pragma}").fetchall()
        if unclean or _size(path) <= CHECK_BYTES_MAX:
            check(database, path)
        if mark is not None:
            compare(path.parent, mark, acknowledged(database))
        migrate(database, path, migrations)
        database.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    except apsw.Error as error:
        database.close()
        raise explain(error, path) from error
    except StoreError:
        database.close()
        raise
    return database


def acknowledged(database: apsw.Connection) -> Acknowledged | None:
    """What the database has; None: it is empty, or of a release that wrote no mark."""
    if _number(database, "user_version") < IDENTITY_VERSION:
        return None
    newest = "max(revision, coalesce((SELECT max(revision) FROM records), 0))"
    row = database.execute(f"SELECT identity, {newest}, epoch FROM meta").fetchone()
    return Acknowledged(*cast("tuple[str, int, int]", row))


def make_private(path: Path) -> None:
    """Only the owner reads it, whatever the umask. SQLite gives its log the same mode. Raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # of another owner: opening it will say so
            path.with_name(name).chmod(0o600)


def check(database: apsw.Connection, path: Path) -> None:
    found = [str(row[0]) for row in database.execute("PRAGMA integrity_check(3)")]
    if found != ["ok"]:
        raise damaged(path, "; ".join(found))


def migrate(database: apsw.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Run what is missing, each step whole or not at all."""
    version = _number(database, "user_version")
    for migration in migrations[version:]:
        database.execute("BEGIN IMMEDIATE")
        try:
            database.authorizer = _no_transaction
            try:
                database.execute(migration.sql).fetchall()
            finally:
                database.authorizer = None
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {migration.version}")
            database.execute("COMMIT")
        except apsw.Error as error:
            if not database.get_autocommit():  # a full disk has rolled back already
                database.execute("ROLLBACK")
            raise unavailable(
                f"{path} stays at version {migration.version - 1}: {migration.name} failed ({error}); "
                "nothing was changed, the previous release of Roost can still use it"
            ) from error


def explain(error: Exception, path: Path) -> Exception:
    """The StoreError for an error of SQLite or the system. Any other is a defect and stays."""
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return damaged(path, str(error))
        case apsw.FullError():
            free = shutil.disk_usage(path.parent).free
            advice = "make room: a running server goes on by itself"
            return unavailable(f"no space left for {path} ({free:,} bytes free on its file system); {advice}")
        case apsw.BusyError() | apsw.LockedError():
            return unavailable(f"another program has {path} open; close it")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return unavailable(f"cannot open {path} for writing ({error}); check its owner and permissions")
        case apsw.Error() | OSError():
            return unavailable(f"cannot read or write {path} ({error}); check the disk and the system's log")
    return error


def damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        Damaged(
            f"{path} is damaged: {what}. Keep a copy of {path.parent}, then restore the last backup; "
            f"`sqlite3 {path} 'PRAGMA integrity_check'` lists what is wrong"
        )
    )


def _recognise(database: apsw.Connection, path: Path, newest: int) -> None:
    version = _number(database, "user_version")
    tables = database.execute("SELECT count(*) FROM sqlite_schema").get
    if tables and _number(database, "application_id") != APPLICATION_ID:
        raise StoreError(Damaged(f"{path} is a database, but not one of Roost's; give Roost another data directory"))
    if version > newest:
        raise unavailable(
            f"{path} has version {version}, this release of Roost knows versions up to {newest}; "
            "use the newer release that wrote it, or restore a backup made before the upgrade"
        )


def _no_transaction(operation: int, *_: str | None) -> int:
    """A migration that ended its transaction could no longer be undone."""
    return apsw.SQLITE_DENY if operation == apsw.SQLITE_TRANSACTION else apsw.SQLITE_OK


def _number(database: apsw.Connection, pragma: str) -> int:
    value = database.execute(f"PRAGMA {pragma}").get
    assert isinstance(value, int)
    return value


def _make(directory: Path) -> None:
    if directory.is_dir():
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    sync_directory(directory.parent)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
