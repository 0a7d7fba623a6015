"""Who changed what: one entry per request that was carried out, in the same commit as what it changed.

The entries are a ring of records: whoever follows the store sees each of them, and history keeps them for longer.
"""

import msgspec

from roost.core.keep import put
from roost.core.state import State
from roost.model import events as happened
from roost.model.audit import Audit, By
from roost.model.kept import KEPT
from roost.model.limits import TEXT_LENGTH_MAX

TARGETS_MAX = 3  # named of a request that is about many


def note(state: State, by: By, event: happened.Request, now: int) -> None:
    """Enter a request that was carried out into the log."""
    state.audited += 1
    what = type(event).__name__
    entry = Audit(state.audited, now, by.who, by.where, what.lower(), target_of(event), state.revision + 1)
    put(state, "audit", str(state.audited % KEPT["audit"]), _ENCODER.encode(entry))


def target_of(event: happened.Request) -> str:
    """What a request is about, in words. Names only: a value may be secret."""
    match event:
        case happened.Submit():
            names = [f"{each.project}/{each.name}" for each in event.wanted]
        case happened.Keep():
            names = [f"{each.kind} {each.name}{'' if each.value is not None else ' (gone)'}" for each in event.records]
        case happened.RunNow() | happened.Promote() | happened.Rollback():
            names = [event.workload]
        case happened.Maintain():
            names = ["on" if event.on else "off"]
        case happened.MarkPool():
            names = [f"pool {event.pool} {event.status}"]
        case happened.Cancel() | happened.Retry() | happened.Posted():
            names = [event.workload if event.index is None else f"{event.workload}.{event.index}"]
        case happened.Drain() | happened.Cordon() | happened.Resume() | happened.Remove():
            names = [event.node]
        case happened.SetProject():
            names = [f"project {event.project.name}"]
        case happened.SetPool():
            names = [f"pool {event.pool.name}"]
        case happened.Reserve():
            names = [f"reservation {event.reservation.name}"]
        case happened.Unset():
            names = [f"{event.kind} {event.name}"]
    more = f" and {len(names) - TARGETS_MAX:,} more" if len(names) > TARGETS_MAX else ""
    return (", ".join(names[:TARGETS_MAX])[: TEXT_LENGTH_MAX - len(more)]) + more


_ENCODER = msgspec.msgpack.Encoder()
