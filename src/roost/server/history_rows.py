"""From commits to rows: what happened, and what is finished. Runs in the writer's thread, so decoding is kept cheap."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from roost.core.effects import Forgotten
from roost.model.audit import Audit
from roost.model.instance import Move
from roost.model.kept import KEPT
from roost.model.states import FINISHED
from roost.model.workload import Workload
from roost.ports.store import Change
from roost.server.views import counts_of, workload_state

#: What an event may be about.
ABOUT = ("instance", "workload", "node", "project", "pool", "reservation", *KEPT)

ROW_BYTES = 200  # of an event with its indexes, as measured

Progress = tuple[int, dict[str, int]]  # how many instances have begun, and how many are in which state


class Commit(NamedTuple):
    """One commit as the engine hands it over. Records are changed in place, so what is counted is noted at once."""

    number: int  # as the engine counts what it hands over, so that what is missing shows
    revision: int
    at_ms: int
    changes: Sequence[Change]
    size: int  # in bytes
    progress: Mapping[str, Progress]  # of the workloads that changed
    forgotten: Sequence[Forgotten] = ()


class Rows:
    """What goes into the tables of one transaction."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.workloads: list[tuple[Any, ...]] = []
        self.instances: list[tuple[Any, ...]] = []
        self.reopened: list[int] = []  # serials of workloads that live (again)
        self.endings: list[tuple[Any, ...]] = []  # events that come after all others of their commit

    @property
    def size(self) -> int:
        """About how many bytes of the file they take, indexes included."""
        records = sum(len(row[-1]) for row in (*self.workloads, *self.instances))
        return records + ROW_BYTES * (len(self.events) + len(self.workloads) + len(self.instances))

    def end(self) -> None:
        """A commit has been read."""
        self.events += self.endings
        self.endings.clear()


class Reader:
    """Reads commits one after the other. `serials` tells which life of a name an instance belongs to."""

    def __init__(self, serials: dict[str, int], revision: int) -> None:
        self.serials = serials
        self.revision = revision

    def read(self, commit: Commit, rows: Rows) -> None:
        """What a commit brings."""
        for forgotten in commit.forgotten:
            self._change(commit, forgotten.change, (forgotten.begun, forgotten.counts), rows)
        late: list[Change] = []
        for change in commit.changes:
            if change.kind == "instance":
                late.append(change)
            else:
                self._change(commit, change, commit.progress.get(change.key, (0, {})), rows)
        for change in late:
            if change.value is not None:
                self._instance(change.value, rows, self.revision, commit.revision)
        rows.end()
        self.revision = commit.revision

    def read_records(
        self, records: Mapping[str, Mapping[str, bytes]], since: int, since_ms: int, until: int, known: set[int]
    ) -> Rows:
        """What a whole state tells of the commits after one revision and up to another, which nobody saw."""
        rows = Rows()
        counts: dict[str, dict[str, int]] = {}
        fresh: set[str] = set()
        for key, value in records.get("workload", {}).items():
            seen = _WORKLOADS.decode(value)
            self.serials[key] = seen.serial
            counts[key] = {}
            if seen.finished_ms and seen.serial not in known:
                fresh.add(key)
            if seen.submitted_ms > since_ms:
                rows.events.append(_workload_event(seen, "submitted", seen.submitted_ms, until))
        for value in records.get("instance", {}).values():
            instance = self._instance(value, rows, since, until, fresh)
            states = counts.setdefault(instance.workload, {})
            states[instance.state] = states.get(instance.state, 0) + 1
        for key, value in records.get("workload", {}).items():
            if key in fresh:
                begun = sum(counts[key].values())
                self._finished(value, (begun, counts[key]), until, rows)
        for value in records.get("node", {}).values():
            node = _NODES.decode(value)
            rows.events += [_node_event(node.name, line) for line in _between(node.story, since, until)]
        for value in records.get("audit", {}).values():
            entry = _AUDITS.decode(value)
            if since < entry.revision <= until:
                rows.events.append(_audit_event(entry))
        rows.end()
        rows.events.sort(key=lambda event: event[:2])
        return rows

    def _change(self, commit: Commit, change: Change, progress: Progress, rows: Rows) -> None:
        kind, key, value = change
        if kind == "workload":
            if value is not None:
                self._workload(key, value, progress, commit, rows)
            else:
                self.serials.pop(key, None)
        elif kind == "instance":
            if value is not None:
                self._instance(value, rows, self.revision, commit.revision)
        elif kind == "node":
            if value is None:
                rows.events.append(_node_event(key, Move(commit.at_ms, "gone", "it was removed", commit.revision)))
                return
            node = _NODES.decode(value)
            rows.events += [_node_event(key, line) for line in _between(node.story, self.revision, commit.revision)]
        elif kind == "audit":
            if value is not None:
                rows.events.append(_audit_event(_AUDITS.decode(value)))
        elif kind == "version":
            if value is not None:  # one that is forgotten is no news: it was over long ago
                self._version(key, commit, rows)
        elif kind not in ("meta", "hook-position"):
            what = "unset" if value is None else "set"
            project, _, _ = key.partition("/") if kind in ("member", "secret", "hook") else (key, "", "")
            owner = project if kind in ("project", "member", "secret", "hook") else ""
            rows.events.append((commit.at_ms, commit.revision, kind, owner, "", None, "", what, f"{kind} {key}", ""))

    def _workload(self, key: str, value: bytes, progress: Progress, commit: Commit, rows: Rows) -> None:
        seen = _WORKLOADS.decode(value)
        if self.serials.get(key) != seen.serial:
            self.serials[key] = seen.serial
            rows.events.append(_workload_event(seen, "submitted", seen.submitted_ms, commit.revision))
        if seen.finished_ms:
            self._finished(value, progress, commit.revision, rows)
        else:
            rows.reopened.append(seen.serial)

    def _version(self, key: str, commit: Commit, rows: Rows) -> None:
        """A version is put aside when the next one takes its place: whoever may see its workload is told."""
        workload, _, number = key.rpartition("@")
        project, _, name = workload.partition("/")
        words = f"version {number} has a successor"
        rows.events.append((commit.at_ms, commit.revision, "workload", project, name, None, "", "changed", words, ""))

    def _finished(self, value: bytes, progress: Progress, revision: int, rows: Rows) -> None:
        workload = _WHOLE.decode(value)
        begun, counts = progress
        every = counts_of(workload, begun, counts)
        state = workload_state(workload, every)
        rows.workloads.append((
            workload.serial, workload.project, workload.name, workload.policy.kind, state, workload.count, begun,
            workload.submitted_ms, workload.finished_ms, _ENCODER.encode(every), value,
        ))  # fmt: skip
        words = workload.cause or ", ".join(f"{number} {each}" for each, number in every.items())
        ending = (
            workload.finished_ms,
            revision,
            "workload",
            workload.project,
            workload.name,
            None,
            "",
            state,
            words,
            "",
        )
        rows.endings.append(ending)

    def _instance(
        self, value: bytes, rows: Rows, since: int, until: int, fresh: "frozenset[str] | set[str]" = frozenset()
    ) -> "_Instance":
        seen = _INSTANCES.decode(value)
        project, _, name = seen.workload.partition("/")
        lines = _between(seen.story, since, until)
        placed = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].state == "placed"), 0)
        for at, line in enumerate(lines):
            node = seen.node if at >= placed else ""  # before it was placed again it was elsewhere
            rows.events.append(
                (line.at_ms, line.revision, "instance", project, name, seen.index, node, line.state, line.cause, "")
            )
        serial = self.serials.get(seen.workload)
        if serial is not None and seen.state in FINISHED and (lines or seen.workload in fresh):
            rows.instances.append((
                serial, seen.index, seen.state, seen.node, seen.started_ms, seen.finished_ms, seen.exit_code, value
            ))  # fmt: skip
        return seen


def _between(story: tuple[Move, ...], since: int, until: int) -> list[Move]:
    """The lines of the commits after one revision, up to another. New lines are at the end."""
    if not story or story[-1].revision <= since:
        return []
    return [line for line in story if since < line.revision <= until]


def _workload_event(seen: "_Workload", what: str, at_ms: int, revision: int) -> tuple[Any, ...]:
    words = "" if seen.count == 1 else f"{seen.count} instances"
    return at_ms, revision, "workload", seen.project, seen.name, None, "", what, words, ""


def _node_event(name: str, line: Move) -> tuple[Any, ...]:
    return line.at_ms, line.revision, "node", "", "", None, name, line.state, line.cause, ""


def _audit_event(entry: Audit) -> tuple[Any, ...]:
    """What it is about may be a workload or a node; then it is found under that, too."""
    project, slash, rest = entry.target.partition("/")
    names_workload = slash and " " not in entry.target
    name, _, index = rest.partition(".") if names_workload else ("", "", "")
    node = entry.target if entry.what in ("cordon", "drain", "resume", "remove") else ""
    words = entry.target + (f" (from {entry.where})" if entry.where else "")
    return (
        entry.at_ms, entry.revision, "audit", project if names_workload else "", name,
        int(index) if index.isdigit() else None, node, entry.what, words, entry.who,
    )  # fmt: skip


class _Instance(msgspec.Struct, gc=False):
    """What rows need of an instance; the rest is not decoded."""

    workload: str
    index: int
    state: str = "queued"
    node: str = ""
    started_ms: int = 0
    finished_ms: int = 0
    exit_code: int | None = None
    story: tuple[Move, ...] = ()


class _Workload(msgspec.Struct, gc=False):
    """What rows need of a workload that lives."""

    project: str
    name: str
    submitted_ms: int
    serial: int
    count: int = 1
    finished_ms: int = 0


class _Node(msgspec.Struct, gc=False):
    """What rows need of a node."""

    name: str
    story: tuple[Move, ...] = ()


_INSTANCES = msgspec.msgpack.Decoder(_Instance)
_WORKLOADS = msgspec.msgpack.Decoder(_Workload)
_NODES = msgspec.msgpack.Decoder(_Node)
_AUDITS = msgspec.msgpack.Decoder(Audit)
_WHOLE = msgspec.msgpack.Decoder(Workload)
_ENCODER = msgspec.msgpack.Encoder()
