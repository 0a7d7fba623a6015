"""Opaque records (tokens, certificates, secrets) and the audit log. A request stores all of its records or none."""

import msgspec

from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.model import events as happened
from roost.model.errors import Conflict, Invalid, TooMuch
from roost.model.events import PutRecords
from roost.model.limits import TEXT_LENGTH_MAX
from roost.model.records.opaque import OPAQUE_KINDS, VALUE_BYTES_MAX, Audit, By, OpaqueRecord
from roost.model.records.project import Pool, Project

DETAIL_LENGTH_MAX = 1_000  # of an entry of the audit log: a quota of some resources, before and after
NOT_SET = ("name", "status", "reason", "failed_by")  # of a pool: not by a request that sets it
TARGETS_MAX = 3  # named of a request that is about many


def put_records(state: State, out: Step, event: PutRecords, now: int) -> None:
    """Store or remove records, if each is as the request expects it."""
    for record in event.records:
        _check(state, record)
    for record in event.records:
        put(state, record.kind, record.name, record.value)
    out.reply(event.request, len(event.records))


def put(state: State, kind: str, name: str, value: bytes | None) -> None:
    records = state.opaque_records.setdefault(kind, {})
    if value is not None:
        records[name] = value
    elif records.pop(name, None) is None:
        return
    state.dirty[kind, name] = None if value is None else msgspec.Raw(value)


def _check(state: State, record: OpaqueRecord) -> None:
    most = OPAQUE_KINDS.get(record.kind)
    if most is None or record.kind == "audit":
        raise Invalid("kind", f"nothing of kind {record.kind!r:.60} is kept")
    existing = state.opaque_records.get(record.kind, {})
    if record.was is not msgspec.UNSET and existing.get(record.name) != record.was:
        there = "there already" if record.was is None else "not as it was seen"
        raise Conflict(
            f"{record.kind} {record.name} is {there}", code="name_in_use" if record.was is None else "changed"
        )
    if record.value is not None and len(record.value) > VALUE_BYTES_MAX:
        raise TooMuch(f"{record.kind} {record.name} has more than {VALUE_BYTES_MAX:,} bytes")
    if record.value is not None and record.name not in existing and len(existing) >= most:
        raise Conflict(f"there are {most:,} records of kind {record.kind} already", code="too_many")


def note(state: State, by: By, event: happened.Request, now: int, detail: str) -> None:
    state.audited += 1
    what = type(event).__name__.lower()
    entry = Audit(state.audited, now, by.who, by.where, what, target_of(event), state.revision + 1, detail)
    put(state, "audit", str(state.audited % OPAQUE_KINDS["audit"]), _ENCODER.encode(entry))


def detail_of(state: State, event: happened.Request) -> str:
    """What a request is about to change, in a state before it."""
    match event:
        case happened.PutRecords():
            detail = event.detail
        case happened.SetProject():
            detail = _difference(state.projects.get(event.project.name), event.project)
        case happened.SetPool():
            detail = _difference(state.pools.get(event.pool.name), event.pool)
        case happened.Maintain() | happened.MarkPool():
            detail = event.reason
        case happened.SetPower():
            detail = event.action
        case _:
            detail = ""
    return detail[:DETAIL_LENGTH_MAX]


def _difference(before: Project | Pool | None, after: Project | Pool) -> str:
    changed: list[str] = []
    for field in after.__struct_fields__:
        new, old = getattr(after, field), getattr(before, field, None)
        if field not in NOT_SET and new != old:
            changed.append(f"{field} {new!r}" + (f", before {old!r}" if before is not None else ""))
    return "; ".join(changed)


def target_of(event: happened.Request) -> str:
    """The names of what a request is about. Values may be secret."""
    match event:
        case happened.Submit():
            names: list[str] = [spec.key for spec in event.specs]
        case happened.PutRecords():
            names = [
                f"{record.kind} {record.name}{'' if record.value is not None else ' (gone)'}"
                for record in event.records
            ]
        case happened.Approve() | happened.Delete() | happened.RunNow() | happened.Promote() | happened.Rollback():
            names = [event.workload]
        case happened.Maintain():
            names = ["on" if event.on else "off"]
        case happened.MarkPool():
            names = [f"pool {event.pool} {event.status}"]
        case happened.Cancel() | happened.Retry() | happened.ResultPosted() | happened.SetPower():
            names = [event.workload if event.index is None else f"{event.workload}.{event.index}"]
        case happened.Drain() | happened.Cordon() | happened.Uncordon() | happened.Remove():
            names = [event.node]
        case happened.SetProject():
            names = [f"project {event.project.name}"]
        case happened.SetPool():
            names = [f"pool {event.pool.name}"]
        case happened.Reserve():
            names = [f"reservation {event.reservation.name}"]
        case happened.DeleteCaches():
            names = [f"cache {event.project}/{key}" for key in event.keys] or [f"caches of {event.project}"]
        case happened.Unset():
            names = [f"{event.kind} {event.name}"]
    more = f" and {len(names) - TARGETS_MAX:,} more" if len(names) > TARGETS_MAX else ""
    return (", ".join(names[:TARGETS_MAX])[: TEXT_LENGTH_MAX - len(more)]) + more


_ENCODER = msgspec.msgpack.Encoder()
