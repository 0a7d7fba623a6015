"""A disk that counts, waits and fails on demand: a SQLite VFS in front of the real one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from roost.ports.store import Change
from roost.stores.sqlite import file
from roost.stores.sqlite.store import SqliteStore
from tests.stores.contract import must


class Disk(apsw.VFS):
    """The default VFS while it is registered. `before_write` and `before_sync` get the name of the file."""

    def __init__(self) -> None:
        self.syncs = 0
        self.before_write: Callable[[str], None] = lambda name: None
        self.before_sync: Callable[[str], None] = lambda name: None
        self.base = apsw.vfs_names()[0]
        super().__init__(f"disk-{id(self)}", self.base, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.disk = disk
        self.name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__(disk.base, name, flags)  # type: ignore[arg-type]

    def xWrite(self, data: bytes, offset: int) -> None:
        self.disk.before_write(self.name)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.disk.syncs += 1
        self.disk.before_sync(self.name)
        super().xSync(flags)


class Gate:
    """Stops every caller until it is opened, and knows whether one waits."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, name: str) -> None:
        self.reached.set()
        assert self._open.wait(timeout=30)

    def open(self) -> None:
        self._open.set()


@contextmanager
def registered() -> Iterator[Disk]:
    disk = Disk()
    try:
        yield disk
    finally:
        disk.unregister()


async def written(data: Path, *commits: list[Change]) -> Path:
    """A store that was used and closed; the path of its file."""
    store = SqliteStore(data)
    epoch = await must(store).lead("server-1")
    for commit in commits:
        await must(store).commit(epoch, commit)
    await store.close()
    return data / file.FILE_NAME
