"""From commits to rows: events and finished work. Runs in the writer's thread, so it decodes as little as it can."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from roost.model.keys import split_instance_key, split_workload_key
from roost.model.reasons.nodes import NodeRemoved
from roost.model.records.opaque import OPAQUE_KINDS, Audit
from roost.model.records.transition import (
    InstanceStory,
    InstanceTransition,
    InstanceTransitioned,
    NodeStory,
    NodeTransition,
    NodeTransitioned,
    Transitioned,
    WorkloadRemoved,
    lines_between,
)
from roost.model.records.workload import Workload
from roost.model.states import FINISHED, InstanceState, NodeStatus
from roost.ports.store import Change
from roost.server.views.work import Progress, counts_of, workload_state

#: What an event may be about.
ABOUT = ("instance", "workload", "node", "project", "pool", "reservation", "history", *OPAQUE_KINDS)

ROW_BYTES = 200  # of an event with its indexes, as measured


class HistoryCommit(NamedTuple):
    """One commit as the engine hands it over. Records are changed in place, so the progress is copied at once."""

    number: int  # consecutive, so that missing commits show
    revision: int
    at_ms: int
    changes: Sequence[Change]
    size: int  # in bytes
    progress: Mapping[str, Progress]  # of the workloads that changed
    transitions: Sequence[Transitioned] = ()


class EventRow(NamedTuple):
    """A row of the table of events, without its id. `message`: a text, or an encoded reason."""

    at_ms: int
    revision: int
    kind: str
    project: str = ""
    workload: str = ""
    number: int | None = None
    node: str = ""
    what: str = ""
    message: str | bytes = ""
    who: str = ""


@dataclass
class HistoryRows:
    events: list[EventRow] = field(default_factory=list)
    workloads: list[tuple[Any, ...]] = field(default_factory=list)
    instances: list[tuple[Any, ...]] = field(default_factory=list)
    reopened: list[int] = field(default_factory=list)  # serials of workloads that are not finished (again)
    audits: list[tuple[Any, ...]] = field(default_factory=list)  # entries as AUDIT_COLUMNS
    endings: list[EventRow] = field(default_factory=list)  # events that come after all others of their commit

    @property
    def size(self) -> int:
        """About how many bytes of the file they take, indexes included."""
        records = sum(len(row[-1]) for row in (*self.workloads, *self.instances))
        return records + ROW_BYTES * (len(self.events) + len(self.audits) + len(self.workloads) + len(self.instances))

    def audit(self, entry: Audit) -> None:
        self.events.append(_audit_event(entry))
        self.audits.append(msgspec.structs.astuple(entry)[1:])

    def end_commit(self) -> None:
        self.events += self.endings
        self.endings.clear()


class HistoryReader:
    """Reads commits in order. `serials`: the serial of the workload that has a name now."""

    def __init__(self, serials: dict[str, int], revision: int) -> None:
        self.serials = serials
        self.revision = revision

    def read(self, commit: HistoryCommit, rows: HistoryRows) -> None:
        """Rows of a commit: nodes, settings and workloads, then instances, then finished workloads."""
        instances: list[InstanceTransitioned] = []
        nodes: dict[str, list[NodeTransition]] = {}
        for item in commit.transitions:
            if isinstance(item, WorkloadRemoved):
                change = Change("workload", item.key, item.record)
                self._change(commit, change, (item.placed_count, item.counts), rows)
            elif item.transition.revision <= self.revision:
                continue
            elif isinstance(item, NodeTransitioned):
                nodes.setdefault(item.key, []).append(item.transition)
            else:
                instances.append(item)
        last = {item.key: item for item in instances}
        finished = {key for key, item in last.items() if item.transition.state in FINISHED}
        removed = [Change("instance", item.key, item.record) for item in last.values()]
        self._instances(removed, finished, rows)
        for change in commit.changes:
            if change.kind == "node":
                rows.events += [_node_event(change.key, line) for line in nodes.get(change.key, ())]
            elif change.kind != "instance":
                self._change(commit, change, commit.progress.get(change.key, (0, {})), rows)
        rows.events += [_instance_event(item.key, item.transition) for item in instances]
        self._instances(commit.changes, finished, rows)
        rows.end_commit()
        self.revision = commit.revision

    def skip(self, commit: HistoryCommit) -> None:
        """A commit whose rows are written already."""
        if commit.revision <= self.revision:
            return
        for change in commit.changes:
            if change.kind == "workload":
                if change.value is None:
                    self.serials.pop(change.key, None)
                else:
                    self.serials[change.key] = _WORKLOADS.decode(change.value).serial
        self.revision = commit.revision

    def serials_of(self, commits: Sequence[HistoryCommit]) -> dict[str, int | None]:
        """The serials that commits may change, for `go_back`."""
        keys = {change.key for commit in commits for change in commit.changes if change.kind == "workload"}
        keys |= {item.key for commit in commits for item in commit.transitions if isinstance(item, WorkloadRemoved)}
        return {key: self.serials.get(key) for key in keys}

    def go_back(self, revision: int, serials: Mapping[str, int | None]) -> None:
        """The rows of the last commits were not written."""
        self.revision = revision
        for key, serial in serials.items():
            if serial is None:
                self.serials.pop(key, None)
            else:
                self.serials[key] = serial

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
                rows.events.append(_submitted_event(seen, until))
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
                self._finished(value, (sum(counts[key].values()), counts[key]), until, rows)
        for value in records.get("node", {}).values():
            node = _NODES.decode(value)
            rows.events += [_node_event(node.name, line) for line in lines_between(node.story, since, until)]
        for value in records.get("audit", {}).values():
            entry = _AUDITS.decode(value)
            if since < entry.revision <= until:
                rows.audit(entry)
        rows.end_commit()
        rows.events.sort(key=lambda event: event[:2])
        return rows

    def _change(self, commit: HistoryCommit, change: Change, progress: Progress, rows: HistoryRows) -> None:
        match change:
            case Change("workload", key, None):
                self.serials.pop(key, None)
            case Change("workload", key, bytes(value)):
                seen = _WORKLOADS.decode(value)
                if self.serials.get(key) != seen.serial:
                    self.serials[key] = seen.serial
                    rows.events.append(_submitted_event(seen, commit.revision))
                if seen.finished_ms:
                    self._finished(value, progress, commit.revision, rows)
                else:
                    rows.reopened.append(seen.serial)
            case Change("audit", _, bytes(value)):
                rows.audit(_AUDITS.decode(value))
            case Change("version", key, bytes()):  # stored when its successor replaces it
                workload, _, number = key.rpartition("@")
                project, name = split_workload_key(workload)
                message = f"version {number} has a successor"
                row = EventRow(
                    commit.at_ms, commit.revision, "workload", project, name, what="changed", message=message
                )
                rows.events.append(row)
            case Change(kind, key, value) if kind not in ("audit", "version", "meta", "hook-position", "usage", "need"):
                owner = key.partition("/")[0] if kind in ("project", "member", "secret", "hook") else ""
                what = "unset" if value is None else "set"
                row = EventRow(commit.at_ms, commit.revision, kind, owner, what=what, message=f"{kind} {key}")
                rows.events.append(row)

    def _finished(self, value: bytes, progress: Progress, revision: int, rows: HistoryRows) -> None:
        workload = _WHOLE.decode(value)
        begun, every = progress[0], counts_of(workload, *progress)
        state = workload_state(workload, every)
        rows.workloads.append((
            workload.serial, workload.project, workload.name, workload.policy.kind, state, workload.count, begun,
            workload.submitted_ms, workload.finished_ms, _ENCODER.encode(every), value,
        ))  # fmt: skip
        message: str | bytes = ", ".join(f"{number} {name}" for name, number in every.items())
        if workload.reason is not None:
            message = _ENCODER.encode(workload.reason)
        project, name = workload.project, workload.name
        event = EventRow(workload.finished_ms, revision, "workload", project, name, what=state, message=message)
        rows.endings.append(event)

    def _instances(self, changes: Iterable[Change], finished: set[str], rows: HistoryRows) -> None:
        for change in changes:
            if change.kind == "instance" and change.value is not None and change.key in finished:
                self._finished_instance(_INSTANCES.decode(change.value), change.value, rows)

    def _finished_instance(self, seen: "_Instance", value: bytes, rows: HistoryRows) -> None:
        serial = self.serials.get(seen.workload)
        if serial is not None:
            rows.instances.append((
                serial, seen.index, seen.state, seen.node, seen.started_ms, seen.finished_ms, seen.exit_code, value
            ))  # fmt: skip


def transitions_in(changes: Iterable[Change], since: int, until: int, at_ms: int) -> list[Transitioned]:
    """The transitions after a revision and up to another, from the records in the commits alone."""
    found: list[Transitioned] = []
    instances: dict[str, _Instance] = {}
    nodes: dict[str, _NodeRow] = {}
    for change in changes:
        if change.kind == "instance" and change.value is not None:
            instances[change.key] = _INSTANCES.decode(change.value)
        elif change.kind == "node" and change.value is not None:
            nodes[change.key] = _NODES.decode(change.value)
        elif change.kind == "node":
            gone = NodeTransition(at_ms, None, NodeStatus.GONE, NodeRemoved(), until)
            found.append(NodeTransitioned(change.key, gone))
    for key, node in nodes.items():
        found += [NodeTransitioned(key, line) for line in lines_between(node.story, since, until)]
    for key, instance in instances.items():
        found += [InstanceTransitioned(key, line) for line in lines_between(instance.story, since, until)]
    return found


def _instance_event(key: str, line: InstanceTransition) -> EventRow:
    workload, index = split_instance_key(key)
    project, name = split_workload_key(workload)
    reason = _ENCODER.encode(line.reason)
    return EventRow(line.at_ms, line.revision, "instance", project, name, index, line.node, line.state, reason)


def _submitted_event(seen: "_Workload", revision: int) -> EventRow:
    message = "" if seen.count == 1 else f"{seen.count} instances"
    return EventRow(
        seen.submitted_ms, revision, "workload", seen.project, seen.name, what="submitted", message=message
    )  # fmt: skip


def _node_event(name: str, line: NodeTransition) -> EventRow:
    reason = _ENCODER.encode(line.reason)
    return EventRow(line.at_ms, line.revision, "node", node=name, what=line.state, message=reason)


def _audit_event(entry: Audit) -> EventRow:
    """A target that is a workload, an instance or a node is also found under that."""
    project, slash, rest = entry.target.partition("/")
    names_workload = slash and " " not in entry.target
    name, _, index = rest.partition(".") if names_workload else ("", "", "")
    node = entry.target if entry.what in ("cordon", "drain", "uncordon", "remove") else ""
    message = ": ".join(filter(None, ("refused" if entry.refused else "", entry.target, entry.detail)))
    message += f" (from {entry.where})" if entry.where else ""
    return EventRow(
        entry.at_ms, entry.revision, "audit", project if names_workload else "", name,
        int(index) if index.isdigit() else None, node, entry.what, message, entry.who,
    )  # fmt: skip


class _Instance(msgspec.Struct, gc=False):
    """The fields of an instance that rows need; the rest is not decoded."""

    workload: str
    index: int
    state: InstanceState = InstanceState.QUEUED
    node: str = ""
    started_ms: int = 0
    finished_ms: int = 0
    exit_code: int | None = None
    story: InstanceStory = ()


class _Workload(msgspec.Struct, gc=False):
    project: str
    name: str
    submitted_ms: int
    serial: int
    count: int = 1
    finished_ms: int = 0


class _NodeRow(msgspec.Struct, gc=False):
    name: str
    story: NodeStory = ()


_INSTANCES = msgspec.msgpack.Decoder(_Instance)
_WORKLOADS = msgspec.msgpack.Decoder(_Workload)
_NODES = msgspec.msgpack.Decoder(_NodeRow)
_AUDITS = msgspec.msgpack.Decoder(Audit)
_WHOLE = msgspec.msgpack.Decoder(Workload)
_ENCODER = msgspec.msgpack.Encoder()
