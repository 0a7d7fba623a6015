"""What hooks are told, out of what was committed: a record carries its story, so nothing is remembered twice.

The same lines are read from a commit as it comes and, after a restart or under a new leader, from the state as a whole:
either way an event has the same id.
"""

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from roost.core.state import State
from roost.model.hook import FINISHED_WORKLOAD, PREEMPTED, Event, is_end
from roost.model.instance import Decision, Instance, Move
from roost.model.limits import STORY_MAX
from roost.model.states import HOLDING
from roost.model.workload import Workload
from roost.ports.store import Change
from roost.server.views import counts_of, workload_state

SCAN_BURST = 2_000  # records looked at before others get their turn: a millisecond
SLACK_MS = 10_000  # a workload's end has no revision; within this time of a position it may be told twice, never not
PLACES_MAX = 20_000  # instances whose node is remembered for when they are placed again in the commit of their end
TOLD_MAX = 20_000  # ends of workloads that are remembered, so that a later change of one does not tell it again

Progress = tuple[int, dict[str, int]]


class Batch(NamedTuple):
    """One commit, as far as hooks need it."""

    revision: int
    at_ms: int
    changes: Sequence[Change]  # of instances, workloads and nodes; those that went in the same step included
    progress: Mapping[str, Progress]  # of the workloads among them


class Found(NamedTuple):
    """What a whole state tells; `torn`: so many objects did more than their story holds."""

    events: list[Event]
    torn: int


class Reader:
    """Turns records into events. `life` tells stores apart that count from the start again."""

    def __init__(self, life: int) -> None:
        self._life = life
        self._told: OrderedDict[str, None] = OrderedDict()
        self._places: OrderedDict[str, str] = OrderedDict()  # where they were placed: a record knows its newest attempt

    def read(self, batch: Batch, since: int) -> list[Event]:
        """What one commit tells: instances first, then what of them is over as a whole."""
        events: list[Event] = []
        endings: list[Event] = []
        for kind, key, value in batch.changes:
            if kind == "instance" and value is not None:
                events += self._instance(_INSTANCES.decode(value), since, batch.revision)
            elif kind == "node" and value is not None:
                events += self._node(key, _NODES.decode(value).story, since, batch.revision)
            elif kind == "node":
                line = Move(batch.at_ms, "gone", "it was removed", batch.revision)
                events.append(self._node_event(key, line, ""))
            elif kind == "workload" and value is not None:
                workload = _WORKLOADS.decode(value)
                if workload.finished_ms:
                    endings += self._finished(workload, batch.progress.get(key, (0, {})), batch.revision)
        return events + endings

    async def read_state(self, state: State, since: int, since_ms: int) -> Found:
        """What was committed after a revision, as the whole state tells it; what comes meanwhile is not in it."""
        until = state.revision
        found: list[Event] = []
        torn = 0
        finished = [
            (each, (state.begun(each), dict(state.progress_of(each).counts) if each.key in state.progress else {}))
            for each in (state.workloads[key] for key in state.finished)
            if each.finished_ms >= since_ms - SLACK_MS
        ]
        nodes = [(node.name, node.story) for node in state.nodes.values()]
        last: dict[str, int] = {}
        for number, instance in enumerate(list(state.instances.values())):
            story = instance.story
            if story and story[-1].revision > since:
                torn += len(story) >= STORY_MAX and story[0].revision > since + 1
                lines = list(self._instance(instance, since, until))
                found += lines
                last[instance.workload] = max([last.get(instance.workload, 0), *(line.revision for line in lines)])
            if number % SCAN_BURST == SCAN_BURST - 1:
                await asyncio.sleep(0)
        for name, story in nodes:
            found += self._node(name, story, since, until)
        for workload, progress in finished:
            # It ended with the last of its instances, which have revisions; if none ran since, some time after that.
            found += self._finished(workload, progress, last.get(workload.key) or until)
        found.sort(key=lambda event: event.revision)
        return Found(found, torn)

    def _instance(self, seen: "Seen | Instance", since: int, until: int) -> Iterator[Event]:
        project, _, name = seen.workload.partition("/")
        told: Counter[tuple[str, int]] = Counter()  # one commit may bring an instance into the same state twice
        placed = [at for at, line in enumerate(seen.story) if line.state == "placed"]
        for at, before, line in _between(seen.story, since, until):
            later = sum(each > at for each in placed)  # attempts after this line
            is_last = not later and at >= (placed[-1] if placed else 0)
            ended = is_end(before, line.state)
            is_over = is_last and line.state not in HOLDING
            node = _node_of(seen) if is_last and placed else self._places.get(seen.key, "") if later == 1 else ""
            what = PREEMPTED if line.state == "stopping" and line.cause.startswith("preempted by ") else line.state
            told[line.state, line.revision] += 1
            number = told[line.state, line.revision]
            yield Event(
                id=self._id("instance", seen.workload, seen.index, line.state, line.revision, number),
                event=f"instance.{what}", at_ms=line.at_ms, revision=line.revision,
                kind="instance", key=seen.key, project=project, workload=name, index=seen.index,
                state=line.state, before=before, ended=ended, cause=line.cause,
                attempt=max(0, seen.attempt - later), node=node, version=seen.version,
                exit_code=seen.exit_code if is_over else _number(_CODE, line.cause) if ended else None,
                signal=seen.signal if is_over else _number(_SIGNAL, line.cause) if ended else None,
            )  # fmt: skip
        if seen.node:
            self._places.pop(seen.key, None)
            if len(self._places) >= PLACES_MAX:
                self._places.popitem(last=False)
            self._places[seen.key] = seen.node

    def _node(self, name: str, story: tuple[Move, ...], since: int, until: int) -> Iterator[Event]:
        for _, before, line in _between(story, since, until):
            yield self._node_event(name, line, before)

    def _node_event(self, name: str, line: Move, before: str) -> Event:
        return Event(
            id=self._id("node", name, line.state, line.revision), event=f"node.{line.state}", at_ms=line.at_ms,
            revision=line.revision, kind="node", key=name, state=line.state, before=before, cause=line.cause, node=name,
        )  # fmt: skip

    def _finished(self, workload: Workload, progress: Progress, revision: int) -> Iterator[Event]:
        id = self._id("workload", workload.key, workload.serial, workload.finished_ms)
        if id in self._told:
            return
        if len(self._told) >= TOLD_MAX:
            self._told.popitem(last=False)
        self._told[id] = None
        counts = counts_of(workload, *progress)
        yield Event(
            id=id, event=FINISHED_WORKLOAD, at_ms=workload.finished_ms, revision=revision, kind="workload",
            key=workload.key, project=workload.project, workload=workload.name,
            state=workload_state(workload, counts), cause=workload.cause, version=workload.version, counts=counts,
        )  # fmt: skip

    def _id(self, *parts: str | int) -> str:
        return sha256("/".join(map(str, (self._life, *parts))).encode()).hexdigest()[:32]


def batch_of(state: State, changes: Iterable[Change], forgotten: Iterable[tuple[Change, int, dict[str, int]]]) -> Batch:
    """A commit to be read later. Records are changed in place, so what is not in the bytes is noted at once."""
    told: list[Change] = []
    progress: dict[str, Progress] = {}
    for change, begun, counts in forgotten:
        told.append(change)
        progress[change.key] = (begun, counts)
    for change in changes:
        if change.kind in KINDS:
            told.append(change)
            if change.kind == "workload" and change.value is not None:
                known = state.progress.get(change.key)
                progress[change.key] = (known.begun, dict(known.counts)) if known else (0, {})
    return Batch(state.revision, state.now_ms, told, progress)


def _between(story: tuple[Move, ...], since: int, until: int) -> Iterator[tuple[int, str, Move]]:
    """The lines of the commits after one revision, up to another, each with its place and the state before it."""
    if not story or story[-1].revision <= since:
        return
    for at, line in enumerate(story):
        if since < line.revision <= until:
            yield at, story[at - 1].state if at else "", line


def _number(words: re.Pattern[str], cause: str) -> int | None:
    """How an earlier attempt ended: its record is the next one's by now, but the story has it in words."""
    found = words.match(cause)
    return int(found[1]) if found else None


def _node_of(seen: "Seen | Instance") -> str:
    """Where the last attempt is or was: who waits again has no node any more, but the decision knows it."""
    if seen.node or not seen.decided:
        return seen.node
    candidates = _DECISIONS.decode(seen.decided).candidates
    return candidates[0][0] if candidates else ""


class Seen(msgspec.Struct, gc=False):
    """What events need of an instance; the rest is not decoded."""

    workload: str
    index: int
    attempt: int = 0
    node: str = ""
    exit_code: int | None = None
    signal: int | None = None
    version: int = 1
    decided: bytes = b""
    story: tuple[Move, ...] = ()

    @property
    def key(self) -> str:
        """PROJECT/NAME.INDEX"""
        return f"{self.workload}.{self.index}"


class _Node(msgspec.Struct, gc=False):
    story: tuple[Move, ...] = ()


_CODE = re.compile(r"(?:step \d+: )?exit code (\d{1,9})\b")  # as core/agents.py puts it
_SIGNAL = re.compile(r"(?:step \d+: )?ended by signal (\d{1,9})\b")
KINDS = frozenset({"instance", "workload", "node"})

_INSTANCES = msgspec.msgpack.Decoder(Seen)
_NODES = msgspec.msgpack.Decoder(_Node)
_WORKLOADS = msgspec.msgpack.Decoder(Workload)
_DECISIONS = msgspec.msgpack.Decoder(Decision)
