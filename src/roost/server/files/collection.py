"""Garbage collection on the leader: blobs that no record and no upload needs are deleted, project by project.

Logs go with their workload, when its removal is committed. Here go those that a leader left: it crashed just then, or
the store of objects was away.

What is named is read anew before each decision, and nothing is awaited between the two. What is about to be deleted is
committed first: a later leader makes those who want one of these blobs wait until it is really gone.

Blobs have an owner: the servers of one state. Another server that was started with the same `--blobs` by mistake would
take all of them for garbage.
"""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from roost.blobs.garbage import DeleteBlobs, ListBlobs
from roost.core.state.state import State
from roost.model.errors import NoService
from roost.model.events import PutRecords
from roost.model.records.opaque import OpaqueRecord
from roost.ports.blobs import SHA256, BlobsUnavailable
from roost.ports.objects import Objects, ObjectsUnavailable
from roost.server.engine.engine import Engine
from roost.server.files.contents import contents_of
from roost.server.files.store import Files, ProjectFiles, available
from roost.server.logs.ends import is_forgotten
from roost.server.logs.hub import LogHub
from roost.server.observability import logging

KIND = "deleted-blobs"
ROUND_S = 600.0  # between rounds: a round lists all blobs, and blobs live for a day at least
PAUSE_S = 1.0  # after each batch of deletions: file systems are slow after many
MARKS_MAX = 2_000_000  # contents of all sets of one project: 200 MB while its round lasts
UPLOAD_MS_MAX = 24 * 3_600_000  # since its last piece; then an upload is forgotten

OWNER = "owner"  # the key of an object beside the blobs

Named = Callable[[State, str], Iterable[str]]

log = logging.logger("files")


def going_in(state: State, project: str) -> tuple[str, ...]:
    """What a leader had committed to delete, and may not have finished."""
    value = state.opaque_records.get(KIND, {}).get(project)
    return () if value is None else msgspec.msgpack.decode(value, type=tuple[str, ...])


class Collection:
    """`named`: the manifests that records of a state name in a project. `identity`: of the state."""

    def __init__(
        self, engine: Engine, files: Files, logs: LogHub, objects: Objects, named: Named,
        identity: Callable[[State], bytes],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._files = files
        self._logs = logs
        self._objects = objects
        self._named = named
        self._identity = identity
        self.deleted = 0  # blobs, in the life of this server

    async def run(self) -> None:
        while True:
            if self._is_sure():
                await self.round()
            await asyncio.sleep(ROUND_S)

    async def round(self) -> None:
        """One round over all projects. What cannot be reached is left to the next one."""
        try:
            if await self._owns():
                await self._collect_logs()
                for project in available(await self._files.root.projects()):
                    await self._collect(self._files.project(project))
        except NoService as error:
            log.warning("garbage collection stopped until its next round", reason=error.message)

    async def _owns(self) -> bool:
        identity = self._identity(await self._engine.read())
        owner = await asyncio.to_thread(self._objects.get, OWNER)
        if owner is None:
            refused = await asyncio.to_thread(self._objects.put, OWNER, identity)
            owner = refused or identity
        if isinstance(owner, ObjectsUnavailable):
            raise NoService(owner.reason)
        if owner != identity:
            hint = "give each state blobs of its own; if it was replaced, delete the object `owner` there"
            log.error(
                "the blobs belong to another state: none is deleted", blobs=self._files.root.describe(), hint=hint
            )
        return owner == identity

    async def _collect_logs(self) -> None:
        async for prefixes in self._logs.stored_workloads():
            state = await self._engine.read()
            for prefix in [prefix for prefix in prefixes if is_forgotten(state, prefix)]:
                if self._is_sure():
                    await asyncio.wrap_future(self._logs.drop(prefix))
                    log.info("logs dropped that were left by a removed workload", workload=prefix)

    async def _collect(self, files: ProjectFiles) -> None:
        available(await files.blobs.expire(files.now_ms() - UPLOAD_MS_MAX))
        files.garbage.begin()
        manifests: set[str] = set()
        marks: set[bytes] = set()
        while self._is_sure() and self._files.project(files.project) is files:
            state = await self._engine.read()
            new = {*self._named(state, files.project), *files.held_sets()} - manifests
            if new:
                await self._mark(files, new, marks)
                manifests |= new
                if len(marks) > MARKS_MAX:
                    log.warning("too many files to collect garbage among them", project=files.project, most=MARKS_MAX)
                    return
                continue
            # Nothing is awaited from `read` to here: the marks have all that is named or held now.
            match files.garbage.step(lambda digest: _short(digest) in marks, files.now_ms()):
                case ListBlobs(after):
                    files.garbage.listed(available(await files.blobs.page(after)))
                case DeleteBlobs(digests):
                    await self._delete(files, digests)
                    await asyncio.sleep(PAUSE_S)
                case None:
                    return

    async def _mark(self, files: ProjectFiles, manifests: Iterable[str], marks: set[bytes]) -> None:
        for manifest in manifests:
            contents = await contents_of(files, manifest)
            marks.add(_short(manifest))
            marks.update(map(_short, contents or ()))

    async def _delete(self, files: ProjectFiles, digests: tuple[str, ...]) -> None:
        left = list(digests)
        try:
            await self._record(files.project, msgspec.msgpack.encode(digests))
            while left and self._is_sure():
                outcome = await files.blobs.delete(left[-1])
                files.deleted(left.pop())
                if isinstance(outcome, BlobsUnavailable):
                    log.warning("a blob could not be deleted", project=files.project, reason=outcome.reason)
                else:
                    self.deleted += 1
            await self._record(files.project, None)
        finally:
            for digest in left:  # no request for it was made
                files.deleted(digest)

    async def _record(self, project: str, value: bytes | None) -> None:
        await self._engine.ask(lambda request: PutRecords(request, (OpaqueRecord(KIND, project, value),), ""))

    def _is_sure(self) -> bool:
        leadership = self._engine.leadership
        return self._engine.ready and (leadership is None or leadership.is_sure())


def _short(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix(SHA256))
