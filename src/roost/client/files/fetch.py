"""Fetch files: small ones in packs, large ones one by one, all verified. A directory is there when it is whole."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from roost.client.errors import ApiError, CannotWrite
from roost.client.files.transfer import Link, run_all
from roost.client.namespace import path_of
from roost.client.transport import JSON, Transport
from roost.files.existing import conflict_free, move_into, with_folders
from roost.files.manifest import ENTRIES_MAX, SMALL_BYTES, FolderEntry, Manifest, decode
from roost.files.merge import InputPart, merge
from roost.files.pack import PackReader, unpack_contents
from roost.files.patterns import Pattern
from roost.files.unpack import Unpack
from roost.model.errors import Conflict, Invalid, TooMuch
from roost.model.spec.files import check_pattern
from roost.ports.blobs import CHUNK_BYTES_MAX, digest_of
from roost.schema.files import Digests, FileLinks

PACK_BYTES = CHUNK_BYTES_MAX // 2  # of contents: two are on their way at once
PACK_FILES = 1_000
PARTIAL_BYTES = 6  # of chance in the name of a directory that is not whole yet
OWN = 0o700
FOLDER_HINT = "choose another directory"
HINT = f"{FOLDER_HINT}, or replace files with --force"
NO_LIMIT = 1 << 62  # what is fetched was limited when it was sent

Fetched = Callable[[int, int], object]  # called with the bytes that are here, and of how many


class Fetcher:
    """Fetches sets of files of one project. `fetched` is called from several threads, by one at a time."""

    def __init__(self, transport: Transport, project: str, fetched: Fetched = lambda done, total: None) -> None:
        self._transport = transport
        self._files = path_of("/v1/projects/{}/files/", project)
        self._blobs = path_of("/v1/projects/{}/blobs/", project)
        self._fetched = fetched
        self._lock = threading.Lock()
        self._done = self._total = 0

    def manifest(self, digest: str) -> Manifest:
        return _decoded(b"".join(bytes(block) for block in self._transport.download(self._files + digest)))

    def manifests(self, digests: Iterable[str]) -> dict[str, Manifest]:
        """Many at once: those of an array take a few requests."""
        wanted = dict.fromkeys(digests)
        found: dict[str, Manifest] = {}
        while rest := [digest for digest in wanted if digest not in found][:PACK_FILES]:
            if len(rest) > 1:
                found |= self._small_manifests(rest)
            if rest[0] not in found:
                found[rest[0]] = self.manifest(rest[0])
        return found

    def _small_manifests(self, digests: list[str]) -> dict[str, Manifest]:
        """Of the first of them, as many as fit into one answer; maybe none."""
        try:
            body = msgspec.json.encode(Digests(digests))
            answer = self._transport.call("POST", f"{self._files}contents", None, body).body
        except ApiError as error:
            if error.code != "invalid":  # the first is too large for a pack
                raise
            return {}
        contents = unpack_contents(answer, CHUNK_BYTES_MAX, PACK_FILES)
        return {digest: _decoded(data) for digest, data in contents if digest_of(data) == digest}

    def fetch(self, manifest: Manifest, to: Path, *, force: bool = False) -> Manifest:
        """Make the directory `to`, or put files into it. What was fetched: same files that are there are left alone.

        Raises CannotWrite, ApiError, Unreachable; then nothing has changed. `force`: replace files.
        """
        try:
            if os.path.lexists(to):
                return self._into(manifest, to, force)
            to.parent.mkdir(parents=True, exist_ok=True)
            partly = to.parent / f".{to.name}.partial-{os.urandom(PARTIAL_BYTES).hex()}"
            self._fill(partly, manifest)
            try:
                partly.chmod(0o777 & ~_umask())
                partly.rename(to)
            except BaseException:
                shutil.rmtree(partly, ignore_errors=True)
                raise
        except OSError as error:
            raise CannotWrite(str(to), error.strerror or str(error)) from None
        return manifest

    def _into(self, manifest: Manifest, to: Path, force: bool) -> Manifest:
        if not to.is_dir():
            raise CannotWrite(str(to), "is a file, not a directory")
        folder = to.resolve()
        try:
            needed = conflict_free(manifest, folder, force=force)
        except (Conflict, Invalid) as error:
            raise CannotWrite(str(to / error.path), error.message, FOLDER_HINT if force else HINT) from None
        own = tuple(replace(entry, mode=OWN) if isinstance(entry, FolderEntry) else entry for entry in needed.entries)
        partly = to / f".partial-{os.urandom(PARTIAL_BYTES).hex()}"
        self._fill(partly, Manifest(own))
        try:
            move_into(partly, folder, needed)
        finally:
            shutil.rmtree(partly, ignore_errors=True)
        return needed

    def _fill(self, folder: Path, manifest: Manifest) -> None:
        """A new folder with everything in it; an error leaves none."""
        try:
            with Unpack(folder, manifest, bytes_max=NO_LIMIT) as tree:
                missing = tree.missing()
                self._done, self._total = 0, sum(missing.values())
                links = self._links([digest for digest, size in missing.items() if size >= SMALL_BYTES])
                large = [
                    partial(self._large, tree, digest, size, links.get(digest, ""))
                    for digest, size in missing.items() if size >= SMALL_BYTES
                ]  # fmt: skip
                small = {digest: size for digest, size in missing.items() if size < SMALL_BYTES}
                run_all(self._transport, [*large, *(partial(self._pack, tree, batch) for batch in _batches(small))])
        except Invalid as error:
            raise CannotWrite(str(folder.parent / error.path), error.message) from None

    def _pack(self, tree: Unpack, batch: dict[str, int], link: Link) -> None:
        body = msgspec.json.encode(Digests(list(batch)))
        answer = link.call("POST", f"{self._files}contents", None, body, JSON)
        reader = PackReader(batch)
        for digest, data in reader.feed(answer.body):
            tree.add(digest, [data])
        reader.finish()
        self._count(sum(batch.values()))

    def _large(self, tree: Unpack, digest: str, size: int, url: str, link: Link) -> None:
        tree.add(digest, self._counted(link.download(self._blobs + digest, size, url)))

    def _links(self, digests: list[str]) -> dict[str, str]:
        """Where contents can be read directly; of those that are not named, the server has the bytes."""
        found: dict[str, str] = {}
        for start in range(0, len(digests), PACK_FILES):
            asked = digests[start : start + PACK_FILES]
            answer = self._transport.call("POST", f"{self._files}links", None, msgspec.json.encode(Digests(asked)))
            found |= zip(asked, msgspec.json.decode(answer.body, type=FileLinks).links, strict=False)
            if not found:
                break
        return found

    def _counted(self, blocks: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for block in blocks:
            yield block
            self._count(len(block))

    def _count(self, length: int) -> None:
        with self._lock:
            self._done += length
            self._fetched(self._done, self._total)


def _decoded(data: bytes) -> Manifest:
    try:
        return decode(data, bytes_max=NO_LIMIT)
    except (Invalid, TooMuch) as error:
        raise CannotWrite(error.path, error.message) from None


def chosen(manifest: Manifest, patterns: Iterable[str]) -> Manifest:
    """The entries that match one of the patterns, and the folders that they are in."""
    wanted = [Pattern(check_pattern(pattern, "pattern")) for pattern in patterns]
    found = (entry for entry in manifest.entries if any(pattern.matches(entry.path) for pattern in wanted))
    return with_folders(manifest, found)


def merged(folders: Mapping[str, Manifest]) -> Iterator[Manifest]:
    """One manifest of several, each in a folder of that name ("": in none); more than one if they are too large."""
    if list(folders) == [""]:  # it was checked when it was read
        yield folders[""]
        return
    parts: list[InputPart] = []
    count = 0
    for folder, manifest in folders.items():
        count += len(manifest.entries) + 1
        if parts and count > ENTRIES_MAX:
            yield merge(parts, bytes_max=NO_LIMIT)
            parts, count = [], len(manifest.entries) + 1
        parts.append(InputPart(folder, manifest))
    yield merge(parts, bytes_max=NO_LIMIT)


def _batches(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    batch: dict[str, int] = {}
    total = 0
    for digest, size in sizes.items():
        if batch and (len(batch) == PACK_FILES or total + size > PACK_BYTES):
            yield batch
            batch, total = {}, 0
        batch[digest] = size
        total += size
    if batch:
        yield batch


def _umask() -> int:
    """What this process takes from the permissions of new files. There is no other way to ask than to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
