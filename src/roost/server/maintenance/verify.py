"""Check of a store: every record is read as a server would read it, and the state is compared with the invariants.

Nothing is written: the state is made in memory and discarded.
"""

from collections.abc import Sequence

import msgspec

from roost.core.invariants import check
from roost.core.replica import follow, mirror, take_over
from roost.core.state.records import Meta
from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.states import ALLOCATED
from roost.ports.store import Change, Snapshot, StoreError
from roost.server.maintenance.backup import kinds_of

LARGEST_MAX = 5
FINDINGS_MAX = 100  # of each sort: one cause usually breaks many records


class Kind(msgspec.Struct, frozen=True):
    kind: str
    records: int
    bytes: int


class Large(msgspec.Struct, frozen=True):
    kind: str
    key: str
    bytes: int


class Finding(msgspec.Struct, frozen=True):
    """A defect. `sort`: unreadable, unknown, orphan or rule; rules are about no record in particular."""

    sort: str
    kind: str
    key: str
    message: str


class Examined(msgspec.Struct, frozen=True):
    """The content of a store and its defects. `wrong` counts also those that are not listed."""

    revision: int
    records: int
    bytes: int
    kinds: list[Kind]
    largest: list[Large]
    findings: list[Finding]
    wrong: int
    unclean_takeover_ms: int = 0  # of the last takeover from a leader that had not released the lead


def examine(snapshot: Snapshot, now_ms: int) -> Examined:
    kinds = kinds_of(snapshot.records)
    findings, meta = _findings(snapshot, now_ms)
    largest = sorted(snapshot.records, key=lambda record: -len(record.value or b""))[:LARGEST_MAX]
    return Examined(
        revision=snapshot.revision,
        records=len(snapshot.records),
        bytes=sum(size for _, size in kinds.values()),
        kinds=[Kind(kind, count, size) for kind, (count, size) in kinds.items()],
        largest=[Large(record.kind, record.key, len(record.value or b"")) for record in largest],
        findings=_listed(findings),
        wrong=len(findings),
        unclean_takeover_ms=meta.unclean_takeover_ms,
    )


def _findings(snapshot: Snapshot, now_ms: int) -> tuple[list[Finding], Meta]:
    """A sound store is read at once. Only if that fails, records are read one by one."""
    findings: list[Finding] = []
    try:
        state = mirror(snapshot)
    except Exception:  # anything that a record makes the loader raise is a finding
        findings, sound = _one_by_one(snapshot.records)
        try:
            state = mirror(Snapshot(snapshot.revision, sound))
        except Exception as error:
            return [*findings, _broken(error)], Meta()
    try:
        take_over(state, now_ms)
        findings += [Finding("rule", "", "", message) for message in check(state)]
    except Exception as error:
        findings.append(_broken(error))
    return findings, state.meta


def _one_by_one(records: Sequence[Change]) -> tuple[list[Finding], list[Change]]:
    """Defects of single records, and the sound records. Instances come last: they refer to the others."""
    findings: list[Finding] = []
    sound: list[Change] = []
    scratch = State()
    for record in sorted(records, key=lambda record: record.kind == "instance"):
        finding = _orphaned(record, scratch) if record.kind == "instance" else _unreadable(record, scratch)
        if finding is None:
            sound.append(record)
        else:
            findings.append(finding)
    return findings, sound


def _unreadable(record: Change, scratch: State) -> Finding | None:
    """Whether a server could read this record; `scratch` has the records before it."""
    try:
        follow(scratch, 0, [record])
    except StoreError as error:
        if isinstance(error.__cause__, msgspec.MsgspecError):
            return Finding("unreadable", record.kind, record.key, f"cannot be read: {error.__cause__}")
        if record.kind == "meta":
            return Finding("unknown", record.kind, record.key, str(error))
        return Finding("unknown", record.kind, record.key, "this release knows no such kind of record")
    except Exception as error:
        return Finding("unreadable", record.kind, record.key, f"cannot be used: {_message(error)}")
    return None


def _orphaned(record: Change, scratch: State) -> Finding | None:
    assert record.value is not None
    try:
        instance = msgspec.msgpack.decode(record.value, type=Instance)
    except msgspec.MsgspecError as error:
        return Finding("unreadable", record.kind, record.key, f"cannot be read: {error}")
    if instance.workload not in scratch.workloads:
        message = f"belongs to workload {instance.workload}, which is not there"
        return Finding("orphan", record.kind, record.key, message)
    if instance.state in ALLOCATED and instance.node not in scratch.nodes:
        message = f"is {instance.state} on node {instance.node or 'of no name'}, which is not there"
        return Finding("orphan", record.kind, record.key, message)
    return None


def _listed(findings: list[Finding]) -> list[Finding]:
    listed: dict[str, list[Finding]] = {}
    for finding in findings:
        listed.setdefault(finding.sort, []).append(finding)
    return [finding for sort in listed.values() for finding in sort[:FINDINGS_MAX]]


def _broken(error: Exception) -> Finding:
    return Finding("rule", "", "", f"no state can be made of these records: {_message(error)}")


def _message(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
