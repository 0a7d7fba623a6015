"""Watch: every committed change, once, in order. A ring of the last ones serves all readers, each at its own pace.

Nothing is encoded until it is read, and then once for all readers: the ring has the committed bytes. A reader is only a
position in the ring; one that falls off its end has to list again, so a slow reader costs the others nothing.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import msgspec

from roost.core.state.state import State
from roost.model.errors import NoService
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.ports.store import Change
from roost.schema.pools import PoolSetting
from roost.server.auth.principal import Redactor
from roost.server.views.operators import reservation_of, setting_view
from roost.server.views.work import instance_view, node_view, progress_of, workload_view, workloads_of
from roost.server.waiting import wait_for

CHANGES_MAX = 20_000  # kept for readers that reconnect: a minute of a busy server, days of a quiet one
BYTES_MAX = 64 << 20  # whatever their size: a document may have half a megabyte
BURST_MAX = 500  # changes encoded at once, some milliseconds: one reader must not delay the others
MARK_EVERY = 1_000  # unwanted commits after which the position is sent anyway
KINDS = ("workload", "instance", "node")
SETTINGS = ("pool", "project", "reservation")  # only for readers that ask for them by name


class ChangeFilter(NamedTuple):
    """Which changes are wanted: of these kinds, and of one workload (PROJECT/NAME) or all visible ones."""

    kinds: frozenset[str] = frozenset(KINDS)
    workload: str = ""
    redactor: Redactor | None = None  # None: everything is visible
    prefix: str = ""  # only of workloads whose PROJECT/NAME begins so, and nothing else


EVERYTHING = ChangeFilter()
UNKNOWN = 1 << 63  # greater than every revision


class CommittedChanges:
    """The changes of one revision, or of several that were followed at once.

    Records are changed in place, so data that is not in the bytes is copied at once.
    """

    __slots__ = ("_notes", "_owners", "before", "changes", "frames", "id", "messages", "revision", "size")

    def __init__(self, state: State, changes: Sequence[Change], before: int, owners: dict[str, str]) -> None:
        self.revision = state.revision
        self.before = before  # the revision after which these changes came
        self.id = event_id(self.revision, state.meta.first_serial)
        self.changes = changes
        self.size = sum([len(change.value) for change in changes if change.value is not None])
        self._notes: dict[str, Any] = {}
        self._owners: dict[str, str] = {}  # of reservations: their project, also of deleted ones; empty: unknown
        self.frames: dict[int, bytes] = {}  # changes as the REST API encodes them, by index
        self.messages: dict[int, Any] = {}  # the same for controllers
        for change in [change for change in changes if change.kind != "instance"]:  # few, also of a large commit
            kind, key, value = change.kind, change.key, change.value
            if kind == "reservation":
                self._owners[key] = owners.pop(key, "") if value is None else reservation_of(value).project
                if value is not None:
                    owners[key] = self._owners[key]
            if value is None:
                continue
            if kind == "workload":
                self._notes[key] = progress_of(state, key)
            elif kind == "node":
                self._notes[key] = node_view(state, key)

    def wanted(self, wanted: ChangeFilter, start: int) -> list[int]:
        """The indexes of the wanted changes among the next BURST_MAX."""
        stop = min(start + BURST_MAX, len(self.changes))
        return [at for at in range(start, stop) if self._is_wanted(self.changes[at], wanted)]

    def view(self, at: int, redactor: Redactor | None = None) -> Any:
        """The object after a change, as the API shows it; None: it was deleted."""
        change = self.changes[at]
        kind, key, value = change.kind, change.key, change.value
        visible = redactor.visible if redactor is not None else None
        if value is None:
            return None
        if kind == "instance":
            return instance_view(self.instance(at), visible)
        if kind in SETTINGS:
            setting = setting_view(kind, value)
            return redactor.pool(setting) if redactor is not None and isinstance(setting, PoolSetting) else setting
        if kind == "workload":
            begun, counts = self._notes[key]
            return workload_view(_WORKLOAD.decode(value), begun, counts, visible=visible)
        return self._notes[key]

    def _is_wanted(self, change: Change, wanted: ChangeFilter) -> bool:
        """Checked before anything is encoded. Instances belong to a workload; nodes and settings do not."""
        kind, key = change.record
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
        return _WORKLOAD.decode(self._record(at))

    def instance(self, at: int) -> Instance:
        return _INSTANCE.decode(self._record(at))

    def _record(self, at: int) -> bytes:
        value = self.changes[at].value
        assert value is not None, "a deleted object has no record"
        return value


class FeedUpdate(NamedTuple):
    """The next part of a stream: wanted changes of a commit, by index, or a position without changes."""

    commit: CommittedChanges | None = None
    changes: Sequence[int] = ()
    id: str = ""  # resume after this one; empty: the commit has more changes
    reset_at: int | None = None  # earlier changes are unavailable: list again, and resume from this revision


class Watch:
    def __init__(self, changes_max: int = CHANGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._changes_max = changes_max
        self._bytes_max = bytes_max
        self._commits: list[CommittedChanges] = []  # each goes on where the one before it ends
        self._changes = 0
        self._bytes = 0
        self._life = 0  # 0: nothing is loaded
        self.revision = 0
        self._generation = 0  # grows when the ring is emptied: positions from before mean nothing
        self._owners: dict[str, str] = {}  # projects of reservations: the state does not have deleted ones
        self._published = asyncio.Event()  # set and cleared at once; stays set when the server stops
        self._of_records = Waiters()
        self._of_workloads = Waiters()
        self._of_prefixes = Waiters()
        self.closed = False
        self.subscribers = 0

    def begin(self, life: int, revision: int, owners: dict[str, str] | None = None) -> None:
        """A state was loaded; changes before it are unknown. `owners`: the project of each reservation."""
        self.forget()
        self._owners = owners or {}
        self._life, self.revision = life, revision
        self._wake()

    def forget(self) -> None:
        """The state is being loaded anew: missing changes are unknown."""
        self._commits.clear()
        self._changes = self._bytes = self._life = 0
        self._generation += 1

    def publish(self, state: State, changes: Sequence[Change]) -> None:
        """A commit is durable. It may stand for several commits that a standby followed at once."""
        commit = CommittedChanges(state, changes, self.revision, self._owners)
        self._commits.append(commit)
        self.revision = commit.revision
        self._changes += len(changes)
        self._bytes += commit.size
        if self._changes > self._changes_max or self._bytes > self._bytes_max:
            self._trim()
        self._published.set()
        self._published.clear()
        self._wake_readers_of(commit)

    @property
    def generation(self) -> int:
        """If it differs from an earlier one, earlier positions are invalid. 0 while nothing is loaded."""
        return self._generation if self._life else 0

    def position(self, since: str) -> int | None:
        """The revision to resume from after a mark; None: the changes after it are unknown."""
        position = self._position(since) if self._life else None
        return position if position is not None and self.after(position) is not None else None

    def after(self, position: int) -> "list[CommittedChanges] | None":
        """Some commits after a revision, oldest first; None: it has fallen off the end, or is inside of a commit.

        Several commits that a standby followed at once are one here. A reader that has seen the first of them
        elsewhere would get those again, after newer ones.
        """
        start = bisect_right(self._commits, position, key=lambda commit: commit.revision)
        before = self._commits[start].before if start < len(self._commits) else self.revision
        return self._commits[start : start + BURST_MAX] if position == before else None

    def mark(self, revision: int) -> str:
        return event_id(revision, self._life)

    async def next_commit(self, timeout_s: float) -> None:
        """Wait for the next commit, a new state or the end of the server, but not longer than this."""
        await wait_for(self._published, timeout_s)

    def close(self) -> None:
        self.closed = True
        self._wake()
        self._of_records.wake_all()

    def changed(self, key: str) -> "asyncio.Future[int]":
        """Done when a record changes or the server stops. A caller that no longer waits cancels it."""
        future = self._of_records.wait(key)
        if self.closed:
            future.set_result(0)
        return future

    async def follow(self, since: str = "", wanted: ChangeFilter = EVERYTHING) -> AsyncGenerator[FeedUpdate, None]:
        """Changes after a mark; without one: from now on. Raises NoService when the server stops."""
        self.subscribers += 1
        try:
            while not self._life and not self.closed:
                await self._published.wait()
            position, generation = self._position(since), self._generation
            if position is not None:
                yield FeedUpdate(id=self.mark(position))
            marked = position or 0
            while not self.closed:
                commits = self.after(position) if position is not None and generation == self._generation else None
                if position is None or commits is None:
                    if not self._life:
                        await self._published.wait()
                        continue
                    marked = position = self.revision
                    generation = self._generation
                    yield FeedUpdate(id=self.mark(position), reset_at=position)
                for commit in commits or ():
                    seen = commit.revision - marked >= MARK_EVERY
                    for start in range(0, len(commit.changes), BURST_MAX):
                        own = commit.wanted(wanted, start)
                        seen = seen or bool(own)
                        if seen and start + BURST_MAX >= len(commit.changes):
                            # After its last change: a reader that is cut off before gets the whole commit again.
                            yield FeedUpdate(commit, own, commit.id)
                            marked = commit.revision
                        elif own:
                            yield FeedUpdate(commit, own)
                        await asyncio.sleep(0)
                    position = commit.revision
                if position == self.revision and generation == self._generation:
                    position = max(position, await self._wanted_commit(wanted))
            raise NoService("the server is stopping")
        finally:
            self.subscribers -= 1

    def _position(self, since: str) -> int | None:
        if not since:
            return self.revision
        revision = self.revision_of(since)
        return revision if revision <= self.revision else None

    def revision_of(self, since: str) -> int:
        """The revision of a mark. It may be unknown here yet; that of a mark of another life is never known."""
        revision, _, life = since.partition("-")
        is_readable = revision.isascii() and revision.isdigit() and len(revision) <= 18
        return int(revision) if is_readable and life in ("", str(self._life)) else UNKNOWN

    def _trim(self) -> None:
        dropped = 0
        while self._changes > self._changes_max or self._bytes > self._bytes_max:
            if dropped == len(self._commits) - 1:
                break  # the newest commit stays, whatever its size
            self._changes -= len(self._commits[dropped].changes)
            self._bytes -= self._commits[dropped].size
            dropped += 1
        del self._commits[:dropped]

    async def _wanted_commit(self, wanted: ChangeFilter) -> int:
        """Wait for a commit that may have a wanted change. Returns the revision before it: earlier ones have none."""
        if wanted.workload:
            return await self._of_workloads.wait(wanted.workload)
        if wanted.prefix:
            return await self._of_prefixes.wait(wanted.prefix)
        await self._published.wait()
        return 0

    def _wake_readers_of(self, commit: CommittedChanges) -> None:
        if commit.revision // MARK_EVERY > commit.before // MARK_EVERY:  # now and then all of them move their position
            self._of_workloads.wake_all(commit.before)
            self._of_prefixes.wake_all(commit.before)
        if self._of_records:
            for change in commit.changes:
                self._of_records.wake(change.key)
        owners = workloads_of(commit.changes) if self._of_workloads or self._of_prefixes else {}
        for owner in owners:
            self._of_workloads.wake(owner, commit.before)
        for prefix in self._of_prefixes.keys():
            if any(owner.startswith(prefix) for owner in owners):
                self._of_prefixes.wake(prefix, commit.before)

    def _wake(self) -> None:
        """All readers look again: a state was loaded, or the server stops."""
        self._published.set()
        if not self.closed:
            self._published.clear()
        self._of_workloads.wake_all()
        self._of_prefixes.wake_all()


def event_id(revision: int, life: int) -> str:
    """A revision and the life of its state: a store without memory begins to count again."""
    return f"{revision}-{life}"


class Waiters:
    """Futures by key. A thousand that wait for other keys cost a commit nothing."""

    def __init__(self) -> None:
        self._futures: dict[str, set[asyncio.Future[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._futures)

    def keys(self) -> list[str]:
        return list(self._futures)

    def wait(self, key: str) -> "asyncio.Future[int]":
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(key, set()).add(future)
        future.add_done_callback(lambda done: self._release(key, done))
        return future

    def wake(self, key: str, revision: int = 0) -> None:
        for future in self._futures.get(key, ()):
            if not future.done():
                future.set_result(revision)

    def wake_all(self, revision: int = 0) -> None:
        for key in self.keys():
            self.wake(key, revision)

    def _release(self, key: str, future: "asyncio.Future[int]") -> None:
        futures = self._futures[key]
        futures.discard(future)
        if not futures:
            del self._futures[key]


_INSTANCE = msgspec.msgpack.Decoder(Instance)
_WORKLOAD = msgspec.msgpack.Decoder(Workload)
