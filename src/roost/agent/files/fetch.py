"""Inputs of a run become its work directory: manifests, contents from the cache or the server, one new directory."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from roost.agent.files.caching import CacheRestore
from roost.agent.files.client import FileClient, TransferRefused
from roost.agent.files.job import TransferJob
from roost.files import web
from roost.files.cache import InputCache
from roost.files.manifest import MANIFEST_BYTES_MAX, SMALL_BYTES, FileEntry, Manifest, decode
from roost.files.merge import InputPart, merge
from roost.files.unpack import WRONG_BYTES, Unpack
from roost.model.errors import Invalid, RoostError, TooMuch
from roost.model.records.files import RunInput
from roost.ports.blobs import CHUNK_BYTES_MAX, SHA256, digest_of

BATCH_MAX = 1_000  # small files in one call
URL_BYTES_MAX = 64 << 30  # as a blob
URL_TRIES_MAX = 8  # about a minute; another attempt of the workload tries again
FILE_MODE = 0o644  # of a file from a URL
READ_BYTES = 1 << 20


class UrlFailed(Exception):
    """A file did not come from its URL, after all tries."""

    def __init__(self, path: str, trouble: web.WebTrouble) -> None:
        super().__init__(str(trouble))
        self.path = path
        self.status = trouble.status
        self.is_final = trouble.is_final


class Flights:
    """Contents that are on their way to the cache: what one thread fetches, others wait for."""

    def __init__(self) -> None:
        self._landed = threading.Condition()
        self._flying: set[str] = set()

    @contextmanager
    def claim(self, digests: Iterable[str]) -> Iterator[list[str]]:
        """Those of these that no other thread fetches; theirs to the end of the block."""
        with self._landed:
            mine = [digest for digest in digests if digest not in self._flying]
            self._flying.update(mine)
        try:
            yield mine
        finally:
            with self._landed:
                self._flying.difference_update(mine)
                self._landed.notify_all()

    def wait(self, digests: Iterable[str], seconds: float) -> None:
        """Until one of these has come, or was given up."""
        wanted = set(digests)
        with self._landed:
            self._landed.wait_for(lambda: not wanted <= self._flying, seconds)


class Fetch:
    """The inputs of one run. `run` blocks.

    Raises Invalid, TooMuch and TransferRefused for what cannot be, OSError for what the disk refuses, UrlFailed,
    TransferStopped.
    """

    def __init__(
        self, job: TransferJob, client: FileClient, cache: InputCache, flights: Flights, owner: int | None
    ) -> None:
        self._job = job
        self._client = client
        self._cache = cache
        self._flights = flights
        self._owner = owner

    def run(self, inputs: Sequence[RunInput], folder: Path, cache: CacheRestore | None = None) -> None:
        """With files of the cache, if they are there and can be had; the inputs do not depend on them."""
        try:
            self._run(inputs, folder, cache)
        except (RoostError, TransferRefused, OSError) as error:
            if cache is None or not cache.digest:
                raise
            cache.give_up(error)
            self._run(inputs, folder, None)
        if cache is not None:
            cache.leave_note(folder)

    def _run(self, inputs: Sequence[RunInput], folder: Path, cache: CacheRestore | None) -> None:
        """Where the disk is full, inputs that no other run is using make room, and it begins again."""
        try:
            self._make(inputs, folder, cache)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._cache.clear():
                raise
            self._make(inputs, folder, cache)

    def _make(self, inputs: Sequence[RunInput], folder: Path, cache: CacheRestore | None) -> None:
        remove_tree(folder)  # an agent that died while it fetched has left it
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        urls = {SHA256 + item.sha256: item for item in inputs if item.url}
        downloads: dict[str, Path] = {}
        try:
            with self._cache.hold(urls) as missing:
                self._once(missing, lambda digests: self._download(digests, urls, downloads))
                manifest = merge(self._parts(inputs, downloads), replace=True)
                if cache is not None:
                    cache.find(manifest)
                    if cache.digest:
                        manifest = cache.merged(self.manifest(cache.digest), manifest)
                self._unpack(folder, manifest, downloads)
        finally:
            for path in downloads.values():
                path.unlink(missing_ok=True)

    def unpack(self, folder: Path, manifest: Manifest) -> None:
        """Make a new folder of a manifest whose contents the server has."""
        self._unpack(folder, manifest, {})

    def _unpack(self, folder: Path, manifest: Manifest, downloads: dict[str, Path]) -> None:
        sizes = {file.digest: file.size for file in manifest.files()}
        user = os.geteuid() if self._owner is None else self._owner
        hold, unpacked = self._cache.hold(sizes), Unpack(folder, manifest, owner=self._owner)
        with hold as missing, unpacked as tree:
            for digest in [digest for digest in missing if digest in downloads]:
                tree.add(digest, _chunks(downloads[digest]))
            self._once(
                [digest for digest in missing if digest not in downloads],
                lambda digests: self._get(digests, sizes, tree),
            )
            for digest in tree.missing():
                self._job.check()
                tree.place(digest, partial(self._cache.place, digest, user=user))

    def _once(self, missing: list[str], bring: Callable[[list[str]], set[str]]) -> None:
        """Have these in the cache, each fetched by one thread. `bring` returns those that do not fit into it."""
        too_large: set[str] = set()
        while missing:
            with self._flights.claim(missing) as mine, self._cache.hold(mine) as lacking:
                too_large |= bring(lacking)  # not what another thread has brought since we looked
            if not mine:
                self._job.check()
                self._flights.wait(missing, seconds=1.0)
            with self._cache.hold(missing) as lacking:
                missing = [digest for digest in lacking if digest not in too_large]

    def _get(self, digests: list[str], sizes: dict[str, int], tree: Unpack) -> set[str]:
        too_large: set[str] = set()

        def keep(digest: str, chunks: Callable[[], Iterable[bytes]]) -> None:
            try:
                self._cache.add(digest, sizes[digest], chunks())
            except TooMuch:  # known before the first chunk
                too_large.add(digest)
                tree.add(digest, chunks())

        for batch in _batches([digest for digest in digests if sizes[digest] < SMALL_BYTES], sizes):
            for digest, data in self._client.get_small(batch):
                keep(digest, lambda data=data: [data])  # type: ignore[misc]
        for digest in digests:
            if sizes[digest] >= SMALL_BYTES:
                keep(digest, partial(self._client.get_large, digest, sizes[digest]))
        return too_large

    def _parts(self, inputs: Sequence[RunInput], downloads: dict[str, Path]) -> Iterator[InputPart]:
        for item in inputs:
            if item.url:
                digest = SHA256 + item.sha256
                size = downloads[digest].stat().st_size if digest in downloads else self._cache.size(digest) or 0
                folder, _, name = item.to.rpartition("/")
                yield InputPart(folder, Manifest((FileEntry(name, FILE_MODE, size, digest),)))
            else:
                yield InputPart(item.to, self.manifest(item.digest), item.path, item.optional)

    def manifest(self, digest: str) -> Manifest:
        found: list[bytes] = []

        def bring(digests: list[str]) -> set[str]:
            for _ in digests:
                data = self._client.get(digest, MANIFEST_BYTES_MAX)
                found.append(data)
                try:
                    self._cache.add(digest, len(data), [data])
                except TooMuch:
                    if digest_of(data) != digest:
                        message = "the bytes of the manifest have another digest"
                        raise Invalid(digest, message, code=WRONG_BYTES) from None
                    return {digest}
            return set()

        with self._cache.hold([digest]) as missing:
            self._once(missing, bring)
            return decode(found[0] if found else self._cache.read(digest))

    def _download(self, digests: list[str], urls: dict[str, RunInput], downloads: dict[str, Path]) -> set[str]:
        """Into files of their own first: the size of a file at a URL is not known before."""
        for digest in digests:
            path, item = self._cache.draft(), urls[digest]
            downloads[digest] = path
            self._download_one(item, path)
            try:
                self._cache.add(digest, path.stat().st_size, _chunks(path))
            except TooMuch:
                continue
            except Invalid:
                raise Invalid(item.to, "the file at the URL has another sha256", code=WRONG_BYTES) from None
            downloads.pop(digest).unlink()
        return set(downloads)

    def _download_one(self, item: RunInput, path: Path) -> None:
        for turn in range(URL_TRIES_MAX):
            try:
                with path.open("wb") as file:
                    file.writelines(web.get(item.url, 0, URL_BYTES_MAX, self._job.check))
                return
            except web.WebTrouble as trouble:
                if trouble.is_final or turn == URL_TRIES_MAX - 1:
                    raise UrlFailed(item.to, trouble) from None
                self._job.pause(min(2.0**turn, 15.0))


def remove_tree(path: Path) -> None:
    """A directory with all that is in it, also where folders are not writable. That there is none is fine."""
    if path.is_symlink():
        path.unlink()
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def _batches(digests: list[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for digest in digests:
        if batch and (size + sizes[digest] > CHUNK_BYTES_MAX or len(batch) >= BATCH_MAX):
            yield batch
            batch, size = [], 0
        batch.append(digest)
        size += sizes[digest]
    if batch:
        yield batch


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(READ_BYTES):
            yield chunk
