"""Copies into and out of running instances: files go to the project, and the node fetches them, or the other way."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from roost.client.errors import CannotSend, CannotWrite, ClientError
from roost.client.files.fetch import Fetched, Fetcher
from roost.client.files.local import find_local
from roost.client.files.send import Sender
from roost.client.files.transfer import Link
from roost.client.namespace import path_of
from roost.client.transport import JSON, Transport
from roost.files.manifest import FileEntry, Manifest
from roost.files.scan import Read
from roost.schema.files import CopyBody, CopyView

WAIT_S = 15  # of one call, for the end of a copy
KEEP_S = 20.0  # between calls that keep a copy: a server lets go of it after a minute
ID_BYTES = 16


class RunningInstance(msgspec.Struct, frozen=True):
    project: str
    name: str
    index: int


class Copier:
    """Copies of one client. `moved` is called with bytes done and in total, from several threads, by one at a time."""

    def __init__(self, transport: Transport, instance: RunningInstance, moved: Fetched) -> None:
        self._transport = transport
        self._instance = instance
        self._moved = moved

    def into(self, source: str | os.PathLike[str], to: str, read: Read) -> CopyView:
        """Raises CannotSend, ApiError, Unreachable."""
        path = Path(source)
        if not path.exists():
            raise CannotSend(str(path), "No such file or directory")
        is_file, name = not path.is_dir(), _name_of(os.fspath(source))
        found = find_local({name if is_file else "": path}, read=read, ignore=False)
        digest = Sender(self._transport, self._instance.project, self._moved).send(found).digest
        with self._copied(CopyBody(to, digest, name, is_file)) as view:
            return view

    def out_of(self, path: str, to: str | os.PathLike[str]) -> CopyView:
        """Raises CannotWrite, ApiError, Unreachable."""
        with self._copied(CopyBody(path)) as view:
            fetcher = Fetcher(self._transport, self._instance.project, self._moved)
            manifest = fetcher.manifest(view.digest) if view.digest else Manifest()
            folder, manifest = _placed(manifest, view, _name_of(path), os.fspath(to))
            if manifest.entries or not folder.is_dir():
                fetcher.fetch(manifest, folder, force=True)
            return view

    @contextmanager
    def _copied(self, body: CopyBody) -> Iterator[CopyView]:
        """A copy that is done, kept by the server to the end of the block."""
        place = self._instance
        folder = path_of("/v1/workloads/{}/{}/instances/{}/copies/", place.project, place.name, str(place.index))
        path, data = folder + os.urandom(ID_BYTES).hex(), msgspec.json.encode(body)
        try:
            yield from self._kept(path, data)
        finally:
            with suppress(ClientError):  # it also ends by itself
                self._transport.call("DELETE", path)

    def _kept(self, path: str, body: bytes) -> Iterator[CopyView]:
        link = Link(self._transport, threading.Event())
        while (view := _asked(link, path, body, WAIT_S)).state != "done":
            pass
        stop, own = threading.Event(), self._transport.copy()
        keeping = threading.Thread(target=_keep, args=(own, stop, path, body), daemon=True)
        keeping.start()
        try:
            yield view
        finally:
            stop.set()
            keeping.join()
            own.close()


def _asked(link: Link, path: str, body: bytes, wait_s: int) -> CopyView:
    answer = link.call("PUT", path, {"wait": wait_s}, body, JSON)
    return msgspec.json.decode(answer.body, type=CopyView)


def _keep(transport: Transport, stop: threading.Event, path: str, body: bytes) -> None:
    while not stop.wait(KEEP_S):
        with suppress(ClientError):
            transport.call("PUT", path, {"wait": 0}, body, JSON)


def _placed(manifest: Manifest, view: CopyView, name: str, to: str) -> tuple[Path, Manifest]:
    """The folder to fetch into, and what goes there: as `cp` has it."""
    place = Path(to)
    is_folder = place.is_dir() or to.endswith("/")
    if not view.is_file:
        return place / name if is_folder else place, manifest
    (file,) = manifest.entries
    if not isinstance(file, FileEntry):
        raise CannotWrite(to, "the server sent a folder in place of a file")
    folder, own = (place, name) if is_folder else (place.parent, place.name)
    return folder, Manifest((replace(file, path=own),))


def _name_of(path: str) -> str:
    """The last name of a path; empty where its content is meant: of "", "." and "folder/."."""
    name = path.rstrip("/").rpartition("/")[2]
    return "" if name in (".", "..") else name
