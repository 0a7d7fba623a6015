"""Watch: every committed change, once, in order. A ring of the last ones serves all who follow, each at its own pace.

Nothing is encoded until it is read, and then once for all: the ring keeps what was committed. A reader is no more than
a position in the ring; one that falls off its end has to list again, so a slow reader costs the others nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import msgspec

from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.ports.store import Change
from roost.schema.pools import PoolSetting
from roost.schema.reason_text import Visible
from roost.server.auth.principal import Redactor
from roost.server.feed import sse
from roost.server.views.operators import reservation_of, setting_view
from roost.server.views.work import instance_view, node_view, workload_view

CHANGES_MAX = 20_000  # kept for those who come back: a minute of a busy server, days of a quiet one
BYTES_MAX = 64 << 20  # whatever their size: a document may have half a megabyte
BURST_MAX = 500  # changes encoded at once, some milliseconds: one reader must not delay the others
MARK_EVERY = 1_000  # unwanted commits after which the position is sent anyway
KINDS = ("workload", "instance", "node")
SETTINGS = ("pool", "project", "reservation")  # only for those that ask for them by name


class ChangeFilter(NamedTuple):
    """Which changes are wanted: of these kinds, and of one workload (PROJECT/NAME) or all visible ones."""

    kinds: frozenset[str] = frozenset(KINDS)
    workload: str = ""
    redactor: Redactor | None = None  # None: everything may be seen
    prefix: str = ""  # only of workloads whose PROJECT/NAME begins so, and nothing else


EVERYTHING = ChangeFilter()


class CommittedChanges:
    """What one revision changed. Records are changed in place, so what is not in the bytes is noted at once."""

    __slots__ = ("_frames", "_notes", "_owners", "before", "changes", "id", "messages", "revision", "size")

    def __init__(
        self, state: State, changes: Sequence[Change], revision: int = 0, before: int = 0, *, owners: dict[str, str]
    ) -> None:
        self.revision = revision or state.revision
        self.before = before or self.revision - 1  # the revision after which these changes came
        self.id = event_id(self.revision, state.meta.first_serial)
        self.changes = changes
        self.size = 0
        self._notes: dict[str, Any] = {}
        self._owners: dict[str, str] = {}  # of reservations: whose they are or were; empty: not known here
        self._frames: dict[int, bytes] = {}
        self.messages: dict[int, Any] = {}  # the same for controllers: see controller_encode
        for kind, key, value in changes:
            if kind == "reservation":
                self._owners[key] = owners.pop(key, "") if value is None else reservation_of(value).project
                if value is not None:
                    owners[key] = self._owners[key]
            if value is None:
                continue
            self.size += len(value)
            if kind == "workload":
                progress = state.progress.get(key)
                self._notes[key] = (progress.placed_count, dict(progress.counts)) if progress else (0, {})
            elif kind == "node":
                self._notes[key] = node_view(state, key)

    def frames_for(self, wanted: ChangeFilter, start: int) -> bytes:
        """The wanted changes from one on, as many as are encoded at once."""
        stop = min(start + BURST_MAX, len(self.changes))
        own = [at for at in range(start, stop) if self._is_wanted(self.changes[at], wanted)]
        if wanted.redactor is None or wanted.redactor.is_open:
            return b"".join([self._frame(at) for at in own])
        return b"".join([self._redacted(at, wanted.redactor) for at in own])

    def _frame(self, at: int) -> bytes:
        frame = self._frames.get(at)
        if frame is None:
            frame = self._frames[at] = self._reported(at, self.view(at))
        return frame

    def _redacted(self, at: int, redactor: Redactor) -> bytes:
        """A frame without what is not to be seen."""
        shown = self.view(at, redactor.visible)
        if isinstance(shown, PoolSetting):
            shown = redactor.pool(shown)
        return self._reported(at, shown)

    def _reported(self, at: int, view: Any) -> bytes:
        kind, key, value = self.changes[at]
        what = "gone" if value is None else "put"
        report = {"revision": self.revision, "kind": kind, "key": key, "what": what, "object": view}
        return sse.event(report, event="change")

    def view(self, at: int, visible: Visible | None = None) -> Any:
        """What a change has made of its object, as the API shows it; None: it is gone."""
        kind, key, value = self.changes[at]
        if value is None:
            return None
        if kind == "instance":
            return instance_view(self.instance(at), visible)
        if kind in SETTINGS:
            return setting_view(kind, value)
        if kind == "workload":
            begun, counts = self._notes[key]
            return workload_view(_WORKLOAD.decode(value), begun, counts, visible=visible)
        return self._notes[key]

    def _is_wanted(self, change: Change, wanted: ChangeFilter) -> bool:
        """Asked before anything is encoded. An instance belongs to its workload; nodes and settings belong to none."""
        kind, key, _ = change
        if kind not in wanted.kinds:
            return False
        if wanted.redactor is not None and kind not in ("node", "pool"):
            if not wanted.redactor.sees(self._owners[key] if kind == "reservation" else key):
                return False
        if wanted.prefix and (kind not in ("workload", "instance") or not key.startswith(wanted.prefix)):
            return False
        if not wanted.workload:
            return True
        return (key.rpartition(".")[0] if kind == "instance" else key) == wanted.workload

    def workload(self, at: int) -> Workload:
        """The record of a workload that was put."""
        value = self.changes[at].value
        assert value is not None
        return _WORKLOAD.decode(value)

    def instance(self, at: int) -> Instance:
        """The record of an instance that was put."""
        value = self.changes[at].value
        assert value is not None
        return _INSTANCE.decode(value)


class Watch:
    """The ring, and the readers that wait for more."""

    def __init__(self, changes_max: int = CHANGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._changes_max = changes_max
        self._bytes_max = bytes_max
        self._commits: list[CommittedChanges] = []  # consecutive revisions
        self._dropped = 0  # commits at the front that are no longer used; cut off from time to time
        self._changes = 0
        self._bytes = 0
        self._life = 0  # 0: nothing is loaded
        self._revision = 0
        self._generation = 0  # grows when the ring is emptied: positions from before mean nothing
        self._owners: dict[
            str, str
        ] = {}  # of the reservations that there are: once one is gone the state does not have it
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._waiting_for: dict[str, dict[asyncio.Future[None], None]] = {}
        self.closed = False
        self.subscribers = 0

    def begin(self, life: int, revision: int, owners: dict[str, str] | None = None) -> None:
        """A state was loaded. What happened before is not known here. `owners`: whose each reservation is."""
        self.forget()
        self._owners = owners or {}
        self._life, self._revision = life, revision
        self._wake(self._waiting)

    def forget(self) -> None:
        """The state is being loaded anew: which changes are missing is unknown."""
        self._commits.clear()
        self._changes = self._bytes = self._dropped = self._life = 0
        self._generation += 1

    def publish(self, state: State, changes: Sequence[Change]) -> None:
        """A commit is durable. Of several that were followed at once, the last one stands for all."""
        commit = CommittedChanges(state, changes, before=self._revision, owners=self._owners)
        for revision in range(self._revision + 1, commit.revision):
            self._commits.append(CommittedChanges(state, (), revision, owners={}))
        self._commits.append(commit)
        self._revision = commit.revision
        self._changes += len(changes)
        self._bytes += commit.size
        if self._changes > self._changes_max or self._bytes > self._bytes_max:
            self._trim()
        if self._waiting:
            self._wake(self._waiting)
        if self._waiting_for:
            for change in changes:
                self._wake(self._waiting_for.get(change.key, {}))

    @property
    def revision(self) -> int:
        """The newest that was published."""
        return self._revision

    @property
    def generation(self) -> int:
        """Another number than before: positions from before have no meaning now. 0 while nothing is loaded."""
        return self._generation if self._life else 0

    def position(self, since: str) -> int | None:
        """The revision to go on from after a mark; None when what came after it is not known here."""
        position = self._position(since) if self._life else None
        return position if position is not None and position >= self._oldest() else None

    def after(self, position: int) -> "list[CommittedChanges] | None":
        """Some commits after a revision, oldest first; None: it has fallen off the end."""
        return self._after(position) if position >= self._oldest() else None

    def mark(self, revision: int) -> str:
        """A place to come back to."""
        return event_id(revision, self._life)

    async def next_commit(self, timeout_s: float) -> None:
        """Wait for the next commit, or for something that changes more, but not longer than this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wait(self._waiting)

    def close(self) -> None:
        """The server is stopping: all streams end."""
        self.closed = True
        for futures in (self._waiting, *self._waiting_for.values()):
            self._wake(futures)

    def changed(self, key: str) -> "asyncio.Future[None]":
        """Done when a record changes or the server stops. A caller that no longer waits cancels it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.closed:
            future.set_result(None)
            return future
        self._waiting_for.setdefault(key, {})[future] = None
        future.add_done_callback(lambda done: self._release(key, done))
        return future

    async def follow(self, since: str = "", wanted: ChangeFilter = EVERYTHING) -> AsyncGenerator[bytes, None]:
        """Changes after a revision as server-sent events; without one: from now on. Ends when the server stops."""
        self.subscribers += 1
        try:
            while not self._life and not self.closed:
                await self._wait(self._waiting)
            position, generation = self._position(since), self._generation
            if position is not None:
                yield sse.mark(event_id(position, self._life))
            marked = position or 0
            while not self.closed:
                if position is None or generation != self._generation or position < self._oldest():
                    if not self._life:
                        await self._wait(self._waiting)
                        continue
                    marked = position = self._revision
                    generation = self._generation
                    yield self._reset()
                for commit in self._after(position):
                    seen = commit.revision - marked >= MARK_EVERY
                    for start in range(0, len(commit.changes), BURST_MAX):
                        data = commit.frames_for(wanted, start)
                        seen = seen or bool(data)
                        if seen and start + BURST_MAX >= len(commit.changes):
                            # After its last change: a reader that is cut off in between gets the whole commit again.
                            data += sse.mark(commit.id)
                            marked = commit.revision
                        if data:
                            yield data
                        await asyncio.sleep(0)
                    position = commit.revision
                if position == self._revision and generation == self._generation:
                    await self._wait(self._waiting)
            yield sse.event({"message": "the server is stopping"}, event="stopping")
        finally:
            self.subscribers -= 1

    def _position(self, since: str) -> int | None:
        """The revision to go on from; None when nothing is known of it."""
        if not since:
            return self._revision
        revision, _, life = since.partition("-")
        if not (revision.isascii() and revision.isdigit() and len(revision) <= 18):
            return None
        if (life and life != str(self._life)) or int(revision) > self._revision:
            return None
        return int(revision)

    def _oldest(self) -> int:
        """The oldest revision that can be gone on from."""
        return self._revision - (len(self._commits) - self._dropped)

    def _after(self, position: int) -> list[CommittedChanges]:
        start = len(self._commits) - (self._revision - position)
        return self._commits[start : start + BURST_MAX]

    def _reset(self) -> bytes:
        message = "changes before this revision are no longer available; list again and resume from the new revision"
        report = {"revision": self._revision, "message": message}
        return sse.event(report, event="reset", id=event_id(self._revision, self._life))

    def _trim(self) -> None:
        newest = len(self._commits) - 1
        while self._dropped < newest and (self._changes > self._changes_max or self._bytes > self._bytes_max):
            oldest = self._commits[self._dropped]
            self._changes -= len(oldest.changes)
            self._bytes -= oldest.size
            self._dropped += 1
        if self._dropped * 4 > len(self._commits):
            del self._commits[: self._dropped]
            self._dropped = 0

    async def _wait(self, futures: "dict[asyncio.Future[None], None]") -> None:
        if self.closed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        futures[future] = None
        try:
            await future
        finally:
            futures.pop(future, None)

    def _release(self, key: str, future: "asyncio.Future[None]") -> None:
        futures = self._waiting_for[key]
        del futures[future]
        if not futures:
            del self._waiting_for[key]

    def _wake(self, futures: "dict[asyncio.Future[None], None]") -> None:
        for future in futures:
            if not future.done():
                future.set_result(None)


def event_id(revision: int, life: int) -> str:
    """A revision, and the life of the state it belongs to: a store without memory counts from the start again."""
    return f"{revision}-{life}"


_INSTANCE = msgspec.msgpack.Decoder(Instance)
_WORKLOAD = msgspec.msgpack.Decoder(Workload)
