"""From commits to rows: what happened, and what is finished. Runs in the writer's thread, so decoding is kept cheap."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from roost.core.state.outcome import Forgotten
from roost.model.records.opaque import OPAQUE_KINDS, Audit
from roost.model.records.transition import Story, Transition, Transitioned, lines_between
from roost.model.records.workload import Workload
from roost.model.states import FINISHED, InstanceState
from roost.ports.store import Change
from roost.server.views.work import counts_of, workload_state

#: What an event may be about.
ABOUT = ("instance", "workload", "node", "project", "pool", "reservation", *OPAQUE_KINDS)

ROW_BYTES = 200  # of an event with its indexes, as measured

Progress = tuple[int, dict[InstanceState, int]]  # how many instances have begun, and how many are in which state


class HistoryCommit(NamedTuple):
    """One commit as the engine hands it over. Records are changed in place, so what is counted is noted at once."""

    number: int  # as the engine counts what it hands over, so that what is missing shows
    revision: int
    at_ms: int
    changes: Sequence[Change]
    size: int  # in bytes
    progress: Mapping[str, Progress]  # of the workloads that changed
    transitions: Sequence[Transitioned] = ()
    forgotten: Sequence[Forgotten] = ()  # records that changed and were deleted in this commit


class HistoryRows:
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


class HistoryReader:
    """Reads commits one after the other. `serials` tells which life of a name an instance belongs to."""

    def __init__(self, serials: dict[str, int], revision: int) -> None:
        self.serials = serials
        self.revision = revision

    def read(self, commit: HistoryCommit, rows: HistoryRows) -> None:
        """Rows of a commit: nodes, settings and workloads, then instances, then finished workloads."""
        transitions = [item for item in commit.transitions if item.transition.revision > self.revision]
        last = {item.key: item.transition.state for item in transitions}
        finished = {key for key, state in last.items() if state in FINISHED}
        nodes: dict[str, list[Transition]] = {}
        for kind, key, line in transitions:
            if kind == "node":
                nodes.setdefault(key, []).append(line)
        for change, begun, counts in commit.forgotten:
            if change.kind == "workload":
                self._change(commit, change, (begun, counts), rows)
        self._instances((forgotten.change for forgotten in commit.forgotten), finished, rows)
        for change in commit.changes:
            if change.kind == "node":
                rows.events += [_node_event(change.key, line) for line in nodes.get(change.key, ())]
            else:
                self._change(commit, change, commit.progress.get(change.key, (0, {})), rows)
        rows.events += [_instance_event(key, line) for kind, key, line in transitions if kind == "instance"]
        self._instances(commit.changes, finished, rows)
        rows.end()
        self.revision = commit.revision

    def read_records(
        self, records: Mapping[str, Mapping[str, bytes]], since: int, since_ms: int, until: int, known: set[int]
    ) -> HistoryRows:
        """Rows of the commits after one revision and up to another that were missed, from a whole state."""
        rows = HistoryRows()
        counts: dict[str, dict[InstanceState, int]] = {}
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
            instance = _INSTANCES.decode(value)
            lines = lines_between(instance.story, since, until)
            rows.events += [_instance_event(f"{instance.workload}.{instance.index}", line) for line in lines]
            if instance.state in FINISHED and (lines or instance.workload in fresh):
                self._finished_instance(instance, value, rows)
            states = counts.setdefault(instance.workload, {})
            states[instance.state] = states.get(instance.state, 0) + 1
        for key, value in records.get("workload", {}).items():
            if key in fresh:
                begun = sum(counts[key].values())
                self._finished(value, (begun, counts[key]), until, rows)
        for value in records.get("node", {}).values():
            node = _NODES.decode(value)
            rows.events += [_node_event(node.name, line) for line in lines_between(node.story, since, until)]
        for value in records.get("audit", {}).values():
            entry = _AUDITS.decode(value)
            if since < entry.revision <= until:
                rows.events.append(_audit_event(entry))
        rows.end()
        rows.events.sort(key=lambda event: event[:2])
        return rows

    def _change(self, commit: HistoryCommit, change: Change, progress: Progress, rows: HistoryRows) -> None:
        kind, key, value = change
        if kind == "workload":
            if value is not None:
                self._workload(key, value, progress, commit, rows)
            else:
                self.serials.pop(key, None)
        elif kind == "audit":
            if value is not None:
                rows.events.append(_audit_event(_AUDITS.decode(value)))
        elif kind == "version":
            if value is not None:  # one that is forgotten is no news: it was over long ago
                self._version(key, commit, rows)
        elif kind not in ("instance", "meta", "hook-position"):
            what = "unset" if value is None else "set"
            project, _, _ = key.partition("/") if kind in ("member", "secret", "hook") else (key, "", "")
            owner = project if kind in ("project", "member", "secret", "hook") else ""
            rows.events.append((commit.at_ms, commit.revision, kind, owner, "", None, "", what, f"{kind} {key}", ""))

    def _workload(self, key: str, value: bytes, progress: Progress, commit: HistoryCommit, rows: HistoryRows) -> None:
        seen = _WORKLOADS.decode(value)
        if self.serials.get(key) != seen.serial:
            self.serials[key] = seen.serial
            rows.events.append(_workload_event(seen, "submitted", seen.submitted_ms, commit.revision))
        if seen.finished_ms:
            self._finished(value, progress, commit.revision, rows)
        else:
            rows.reopened.append(seen.serial)

    def _version(self, key: str, commit: HistoryCommit, rows: HistoryRows) -> None:
        """A version is put aside when the next one takes its place."""
        workload, _, number = key.rpartition("@")
        project, _, name = workload.partition("/")
        message = f"version {number} has a successor"
        rows.events.append((commit.at_ms, commit.revision, "workload", project, name, None, "", "changed", message, ""))

    def _finished(self, value: bytes, progress: Progress, revision: int, rows: HistoryRows) -> None:
        workload = _WHOLE.decode(value)
        begun, counts = progress
        every = counts_of(workload, begun, counts)
        state = workload_state(workload, every)
        rows.workloads.append((
            workload.serial, workload.project, workload.name, workload.policy.kind, state, workload.count, begun,
            workload.submitted_ms, workload.finished_ms, _ENCODER.encode(every), value,
        ))  # fmt: skip
        message: str | bytes = ", ".join(f"{number} {name}" for name, number in every.items())
        if workload.reason is not None:
            message = _ENCODER.encode(workload.reason)
        rows.endings.append((
            workload.finished_ms, revision, "workload", workload.project, workload.name, None, "", state, message, ""
        ))  # fmt: skip

    def _instances(self, changes: Iterable[Change], finished: set[str], rows: HistoryRows) -> None:
        for kind, key, value in changes:
            if kind == "instance" and value is not None and key in finished:
                self._finished_instance(_INSTANCES.decode(value), value, rows)

    def _finished_instance(self, seen: "_Instance", value: bytes, rows: HistoryRows) -> None:
        serial = self.serials.get(seen.workload)
        if serial is not None:
            rows.instances.append((
                serial, seen.index, seen.state, seen.node, seen.started_ms, seen.finished_ms, seen.exit_code, value
            ))  # fmt: skip


def _instance_event(key: str, line: Transition) -> tuple[Any, ...]:
    workload, _, index = key.rpartition(".")
    project, _, name = workload.partition("/")
    reason = _ENCODER.encode(line.reason)
    return line.at_ms, line.revision, "instance", project, name, int(index), line.node, line.state, reason, ""


def _workload_event(seen: "_Workload", what: str, at_ms: int, revision: int) -> tuple[Any, ...]:
    message = "" if seen.count == 1 else f"{seen.count} instances"
    return at_ms, revision, "workload", seen.project, seen.name, None, "", what, message, ""


def _node_event(name: str, line: Transition) -> tuple[Any, ...]:
    return line.at_ms, line.revision, "node", "", "", None, name, line.state, _ENCODER.encode(line.reason), ""


def _audit_event(entry: Audit) -> tuple[Any, ...]:
    """What it is about may be a workload or a node; then it is also found under that."""
    project, slash, rest = entry.target.partition("/")
    names_workload = slash and " " not in entry.target
    name, _, index = rest.partition(".") if names_workload else ("", "", "")
    node = entry.target if entry.what in ("cordon", "drain", "resume", "remove") else ""
    message = entry.target + (f" (from {entry.where})" if entry.where else "")
    return (
        entry.at_ms, entry.revision, "audit", project if names_workload else "", name,
        int(index) if index.isdigit() else None, node, entry.what, message, entry.who,
    )  # fmt: skip


class _Instance(msgspec.Struct, gc=False):
    """What rows need of an instance; the rest is not decoded."""

    workload: str
    index: int
    state: InstanceState = InstanceState.QUEUED
    node: str = ""
    started_ms: int = 0
    finished_ms: int = 0
    exit_code: int | None = None
    story: Story = ()


class _Workload(msgspec.Struct, gc=False):
    """What rows need of a workload that lives."""

    project: str
    name: str
    submitted_ms: int
    serial: int
    count: int = 1
    finished_ms: int = 0


class _NodeRow(msgspec.Struct, gc=False):
    """What rows need of a node."""

    name: str
    story: Story = ()


_INSTANCES = msgspec.msgpack.Decoder(_Instance)
_WORKLOADS = msgspec.msgpack.Decoder(_Workload)
_NODES = msgspec.msgpack.Decoder(_NodeRow)
_AUDITS = msgspec.msgpack.Decoder(Audit)
_WHOLE = msgspec.msgpack.Decoder(Workload)
_ENCODER = msgspec.msgpack.Encoder()
