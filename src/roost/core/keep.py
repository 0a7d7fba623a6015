"""Records that are stored for others: tokens, certificates, secrets. All of a request, or nothing."""

import msgspec

from roost.core.effects import Step
from roost.core.state import State
from roost.model.errors import Conflict, Invalid, RoostError, TooMuch
from roost.model.events import Keep
from roost.model.kept import KEPT, VALUE_BYTES_MAX, Kept


def keep(state: State, out: Step, event: Keep, now: int) -> None:
    """Store or forget records, if each is as whoever asks has seen it."""
    for record in event.records:
        error = _refusal(state, record)
        if error is not None:
            out.reply(event.request, error)
            return
    for record in event.records:
        put(state, record.kind, record.name, record.value)
    out.reply(event.request, len(event.records))


def put(state: State, kind: str, name: str, value: bytes | None) -> None:
    """Store or forget one record."""
    records = state.kept.setdefault(kind, {})
    if value is not None:
        records[name] = value
    elif records.pop(name, None) is None:
        return
    state.dirty[kind, name] = None if value is None else msgspec.Raw(value)


def _refusal(state: State, record: Kept) -> RoostError | None:
    most = KEPT.get(record.kind)
    if most is None or record.kind == "audit":
        return Invalid("kind", f"nothing of kind {record.kind!r:.60} is kept")
    known = state.kept.get(record.kind, {})
    if record.was is not msgspec.UNSET and known.get(record.name) != record.was:
        there = "there already" if record.was is None else "not as it was seen"
        return Conflict(
            f"{record.kind} {record.name} is {there}", code="name_in_use" if record.was is None else "changed"
        )
    if record.value is not None and len(record.value) > VALUE_BYTES_MAX:
        return TooMuch(f"{record.kind} {record.name} has more than {VALUE_BYTES_MAX:,} bytes")
    if record.value is not None and record.name not in known and len(known) >= most:
        return Conflict(f"there are {most:,} records of kind {record.kind} already", code="too_many")
    return None
