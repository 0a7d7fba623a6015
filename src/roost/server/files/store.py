"""The files of all projects on the leader. What is asked about is held first: since then, none of it can have gone."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, KeysView, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from roost.blobs.factory import BlobRoot
from roost.blobs.garbage import GRACE_MS, GarbageCollector
from roost.model.errors import NoService, NotFound
from roost.model.records.files import FileSet
from roost.ports.blobs import CHUNK_BYTES_MAX, DIGESTS_MAX, BlobsUnavailable
from roost.server.files.sent import IsNamed, SentBytes

HOLDS_MAX = 2_000_000  # digests that all projects hold: 200 MB
DELETED_S_MAX = 30.0  # a hundred deletions take a second on a slow disk
LATE_DELETE_S_MAX = 90.0  # of a server that has lost the lead: a request to S3 with all its retries
SETS_MAX = 100_000  # of a project, in use within an hour: 30 MB

T = TypeVar("T")


class HeldSet:
    """A set of files that is in use. `files`: it is complete, and stays so while it is held."""

    __slots__ = ("files", "until_ms", "users")

    def __init__(self) -> None:
        self.files: FileSet | None = None
        self.users = 0
        self.until_ms = 0


class ProjectFiles:
    """The blobs of one project and their garbage collector, for as long as this server leads."""

    def __init__(
        self, root: BlobRoot, project: str, garbage: GarbageCollector, sent: SentBytes, now_ms: Callable[[], int]
    ) -> None:
        self.project = project
        self.blobs = root.project(project)
        self.links = root.links(project)
        self.garbage = garbage
        self.sent = sent
        self.now_ms = now_ms
        self._deleted = asyncio.Event()
        self._sets: dict[str, HeldSet] = {}

    async def hold(self, owner: str, digests: Sequence[str]) -> None:
        """Keep these for an owner, whether they are there or not. Waits for deletions that are under way.

        Raises NoService.
        """
        going = self.garbage.hold(owner, digests, self.now_ms())
        if going is None:
            raise too_many_held()
        await self._wait_for(going)

    async def send(self, owner: str, sizes: Sequence[tuple[str, int]]) -> None:
        """Keep contents that an owner sends: they count until something names them. Raises NoService."""
        self.sent.add(self.project, owner, sizes, self.now_ms())
        await self.hold(owner, [digest for digest, _ in sizes])

    @asynccontextmanager
    async def held_set(self, digest: str, keep_ms: int = 0) -> AsyncIterator[HeldSet]:
        """Keep a set with all its contents: its manifest counts as named. `keep_ms`: also for a while afterwards."""
        held = self._sets.get(digest)
        if held is None:
            self._expire_sets()
            if len(self._sets) >= SETS_MAX:
                raise too_many_held()
            held = self._sets[digest] = HeldSet()
        held.users += 1
        try:
            await self._wait_for(self.garbage.going)
            yield held
        finally:
            held.users -= 1
            held.until_ms = max(held.until_ms, self.now_ms() + keep_ms)
            if not held.users and held.until_ms <= self.now_ms():
                self._sets.pop(digest, None)

    def held_sets(self) -> KeysView[str]:
        """The manifests of sets that are held."""
        self._expire_sets()
        return self._sets.keys()

    def _expire_sets(self) -> None:
        now = self.now_ms()
        for digest in [digest for digest, held in self._sets.items() if not held.users and held.until_ms <= now]:
            del self._sets[digest]

    async def _wait_for(self, going: Collection[str]) -> None:
        try:
            async with asyncio.timeout(DELETED_S_MAX):
                while self.garbage.going.intersection(going):
                    await self._deleted.wait()
        except TimeoutError:
            raise NoService("files are being deleted; try again in a moment", code="too_busy") from None

    def deleted(self, digest: str) -> None:
        """A deletion has ended, whatever its outcome."""
        self.garbage.deleted(digest)
        self._deleted.set()
        self._deleted = asyncio.Event()

    async def sizes(self, digests: Sequence[str]) -> list[int | None]:
        """The size of each blob; None: it is not there. Raises NoService."""
        found: list[int | None] = []
        for start in range(0, len(digests), DIGESTS_MAX):
            found += available(await self.blobs.sizes(digests[start : start + DIGESTS_MAX]))
        return found

    async def read(self, digest: str, size_max: int) -> bytes:
        """A whole blob. Raises NotFound, and NoService."""
        pieces: list[bytes] = []
        offset = 0
        while offset < size_max:
            piece = available(await self.blobs.read(digest, offset, min(CHUNK_BYTES_MAX, size_max - offset)))
            if piece is None:
                raise no_blob(self.project, digest)
            pieces.append(piece)
            offset += len(piece)
            if len(piece) < CHUNK_BYTES_MAX:
                break
        return b"".join(pieces)


class Files:
    """The files of each project. `epoch`: of this server's lead; what an earlier lead has held counts no more.

    `going`: what an earlier leader was deleting in a project, and may still delete.
    """

    def __init__(
        self, root: BlobRoot, now_ms: Callable[[], int], epoch: Callable[[], int], grace_ms: int = GRACE_MS,
        going: Callable[[str], Iterable[str]] = lambda project: (),
        is_named: IsNamed = lambda project, files: False,
    ) -> None:  # fmt: skip
        self.root = root
        self._now_ms = now_ms
        self._epoch = epoch
        self._grace_ms = grace_ms
        self._going = going
        self._is_named = is_named
        self._sent = SentBytes(is_named, grace_ms)
        self._projects: dict[str, ProjectFiles] = {}
        self._seen_epoch = epoch()

    def project(self, name: str) -> ProjectFiles:
        """Raises Invalid for a text that is no name of a project."""
        self._begin()
        found = self._projects.get(name)
        if found is None:
            going = tuple(self._going(name))
            garbage = GarbageCollector(self._now_ms(), going, grace_ms=self._grace_ms)
            found = self._projects[name] = ProjectFiles(self.root, name, garbage, self._sent, self._now_ms)
            for digest in going:
                asyncio.get_running_loop().call_later(LATE_DELETE_S_MAX, found.deleted, digest)
        if self.held_count > HOLDS_MAX:
            raise too_many_held()
        return found

    @property
    def held_count(self) -> int:
        """Contents that uploads in progress hold, of all projects."""
        return sum(files.garbage.held_count for files in self._projects.values())

    @property
    def held_bytes(self) -> int:
        """Bytes that were sent to this leader and that nothing names so far."""
        return self._sent.size(self._now_ms())

    def _begin(self) -> None:
        if self._epoch() != self._seen_epoch:
            self._seen_epoch = self._epoch()
            self._projects.clear()
            self._sent = SentBytes(self._is_named, self._grace_ms)


def available(outcome: T | BlobsUnavailable) -> T:
    """What the blob store answers. Raises NoService with what an operator can do."""
    if isinstance(outcome, BlobsUnavailable):
        raise NoService(f"the blob store fails: {outcome.reason}", code="blobs_unavailable")
    return outcome


def no_blob(project: str, digest: str) -> NotFound:
    return NotFound(f"project {project} has no blob {digest}", path="digest", params={"digest": digest})


def too_many_held() -> NoService:
    return NoService("too many files are being sent; try again when some of them are in use", code="too_busy")
