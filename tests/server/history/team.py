"""Servers that share a history, driven by hand: one decides, the others follow, and any of them can be killed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from roost.blobs.history_segments import SegmentPages
from roost.blobs.object_memory import MemoryObjects
from roost.core.replica import follow, mirror, take_over
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.step import step
from roost.core.transitions import followed_transitions
from roost.model.events import Event
from roost.ports.history import HistoryPages
from roost.ports.objects import ObjectsUnavailable
from roost.ports.store import Behind, Change, Lead, News, Snapshot
from roost.server.engine.recording import records_of
from roost.server.history.service import History, SharedHistory
from tests.core.random_clusters import NODES, events_of, small_cluster

TABLES = ("stretches", "snapshots", "batches", "workloads", "instances", "events", "audits")
DEADLINE_S = 120.0


class Cable:
    """The objects as one server reaches them, until it is cut."""

    def __init__(self, objects: MemoryObjects) -> None:
        self._objects = objects
        self.is_cut = False

    def put(self, key: str, data: bytes) -> ObjectsUnavailable | None:
        return CUT if self.is_cut else self._objects.put(key, data)

    def get(self, key: str) -> bytes | ObjectsUnavailable | None:
        return CUT if self.is_cut else self._objects.get(key)

    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[str] | ObjectsUnavailable:
        return CUT if self.is_cut else self._objects.list(folder, after, limit)

    def delete(self, key: str) -> ObjectsUnavailable | None:
        return CUT if self.is_cut else self._objects.delete(key)


CUT = ObjectsUnavailable("the cable is cut")


class Commits:
    """What a store keeps for followers."""

    def __init__(self) -> None:
        self.kept: dict[int, list[Change]] = {}

    async def follow(self, revision: int) -> AsyncIterator[News | Behind]:
        newest = max(self.kept, default=revision)
        wanted = range(revision + 1, newest + 1)
        if any(number not in self.kept for number in wanted):
            yield Behind(f"the changes after revision {revision} are not kept")
            return
        yield News(newest, [change for number in wanted for change in self.kept[number]], Lead())
        await asyncio.Event().wait()


class Member:
    """One server: its mirror of the state, and its history."""

    def __init__(self, team: "Team", folder: Path, state: State) -> None:
        self.state = state
        self.cable = Cable(team.objects)
        self.epoch = 0
        pages: HistoryPages = SegmentPages(self.cable, 2_000)
        shared = SharedHistory(pages, "blobs", team.commits, 0.0, lambda: self.epoch)  # type: ignore[arg-type]
        self.history = History(folder, Settings(), retention_ms=1 << 60, shared=shared)
        self.history.start()
        self.history.begin(state, state.revision)

    def rows(self) -> dict[str, list[Any]]:
        with closing(apsw.Connection(str(self.history.path))) as database:
            return {table: database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in TABLES}


class Team:
    def __init__(self, folder: Path, size: int = 2) -> None:
        self.folder = folder
        self.objects = MemoryObjects()
        self.commits = Commits()
        self.epoch = 0
        self._made = 0
        state = small_cluster()
        state.meta.first_serial = 1
        self.was = {state.revision: records_of(state)}
        self.members = [self._make(mirror(Snapshot(state.revision, records_of(state)))) for _ in range(size)]
        self.now_ms = state.now_ms
        self.leader = self.members[0]
        self.lead(self.leader)

    def lead(self, member: Member) -> None:
        """Another server is elected. It decides with what it has followed."""
        for other in self.members:
            other.epoch = 0
        self.epoch += 1
        self.leader = member
        take_over(member.state, self.now_ms)
        member.epoch = self.epoch
        for node in NODES:
            self.happens("hello", node)

    def steps(self, events: Callable[[State, int], list[Event]], wait_ms: int = 10) -> None:
        self.now_ms += wait_ms
        state = self.leader.state
        done = step(state, events(state, self.now_ms), self.now_ms)
        if done.changes:
            self.commits.kept[state.revision] = list(done.changes)
            self.was[state.revision] = records_of(state)
        self.leader.history.take(state, done.changes, done.transitions)
        for member in self.members:
            if member is not self.leader and done.changes:
                since = member.state.revision
                follow(member.state, state.revision, done.changes)
                transitions = followed_transitions(member.state, done.changes, since)
                member.history.take(member.state, done.changes, transitions)

    def happens(self, kind: str, what: Any) -> None:
        self.steps(lambda state, now: events_of(state, kind, what, now), what * 1_000 if kind == "wait" else 10)

    def cut(self, member: Member) -> None:
        """With kill -9: it writes and reads nothing any longer."""
        member.cable.is_cut = True
        member.epoch = 0

    async def kill(self, member: Member) -> None:
        self.cut(member)
        self.members.remove(member)
        await member.history.close()

    def join(self) -> Member:
        """A server with an empty disk loads the state and follows."""
        state = mirror(Snapshot(self.leader.state.revision, records_of(self.leader.state)))
        member = self._make(state)
        self.members.append(member)
        return member

    async def written(self) -> None:
        """Until every server has every commit in its file."""
        async with asyncio.timeout(DEADLINE_S):
            while any(
                member.history.standing().revision < member.state.revision or member.history.standing().failed
                for member in self.members
            ):
                self.leader.history.take(self.leader.state, ())
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        for member in self.members:
            await member.history.close()

    def _make(self, state: State) -> Member:
        self._made += 1
        return Member(self, self.folder / str(self._made), state)
