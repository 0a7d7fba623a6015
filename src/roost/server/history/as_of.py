"""The past: which commit a time means, and the state as it was after it."""

from typing import Any

import apsw
import msgspec

from roost.core.replica import mirror
from roost.core.state.allocation import Allocation
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import Invalid, NotFound
from roost.model.records.instance import Instance
from roost.model.spec.units import duration_ms, is_moment, moment_ms
from roost.model.states import ALLOCATED, NodeStatus
from roost.ports.store import Change, Snapshot
from roost.server.history.database import first_row, unpack

#: Kinds of records, and where a state has them. Whatever is kept for others comes beside.
KINDS = {
    "project": "projects",
    "pool": "pools",
    "reservation": "reservations",
    "node": "nodes",
    "version": "versions",
    "workload": "workloads",
    "instance": "instances",
}

AT = "at"
DIGITS_MAX = 18
MESSAGES = "a time is like 2030-01-31T18:00Z, 2h (ago) or @REVISION"


class Moment(msgspec.Struct, frozen=True):
    """One commit of the past. `token` names it exactly, for `at`."""

    revision: int
    at_ms: int
    stretch: int
    token: str
    gap: str = ""  # why it may not be what was asked for


def find_moment(database: apsw.Connection, at: str, now_ms: int) -> Moment:
    """The commit that a time, a duration ago or a @REVISION means. Raises Invalid, NotFound."""
    if at.startswith("@"):
        return _by_revision(database, at)
    try:
        when_ms = moment_ms(at, AT, now_ms) if is_moment(at) else now_ms - duration_ms(at, AT)
    except Invalid as error:
        raise Invalid(AT, f"{MESSAGES}: {error.message}") from None
    return _by_time(database, when_ms)


def state_at(database: apsw.Connection, moment: Moment, settings: Settings) -> State:
    """The state as it was: good for reading, not for deciding."""
    records = records_at(database, moment.stretch, moment.revision)
    instances = records.pop("instance", {})
    changes = [Change(kind, key, value) for kind, things in records.items() for key, value in things.items()]
    state = mirror(Snapshot(moment.revision, changes), settings)
    state.now_ms = moment.at_ms
    _enter(state, instances)
    for name, node in state.nodes.items():
        state.liveness[name].connected = node.status in (
            NodeStatus.READY,
            NodeStatus.CORDONED,
            NodeStatus.DRAINING,
            NodeStatus.DRAINED,
        )
    for workload in state.workloads.values():
        if workload.adopted:  # which of its instances never ran is not known
            progress = state.progress_of(workload)
            progress.placed_count = max(progress.placed_count, workload.count)
    return state


def _enter(state: State, instances: dict[str, bytes]) -> None:
    """What a mirror does instance by instance; the room they take is counted once per node, three times as fast.
    Affinity is left out: nothing is placed in the past."""
    room: dict[str, dict[str, int]] = {}
    for key, value in instances.items():
        instance = state.instances[key] = _INSTANCES.decode(value)
        workload = state.spec_of(instance)
        progress = state.progress_of(workload)
        progress.placed_count = max(progress.placed_count, instance.index + 1)
        progress.counts[instance.state] = progress.counts.get(instance.state, 0) + 1
        if instance.state not in ALLOCATED:
            continue
        state.allocated[instance.node][instance.token] = instance
        if not instance.prefilled_behind:
            ask = workload.policy.ask
            used = room.setdefault(instance.node, {})
            for resource, amount in ask.resources:
                used[resource] = used.get(resource, 0) + amount
            if instance.devices or instance.ports:
                claim = Allocation(devices=instance.devices, device_milli=ask.gpu_milli, ports=instance.ports)
                state.fleet.take(instance.node, claim)
    for node, used in room.items():
        state.fleet.take(node, Allocation(resources=tuple(used.items())))


def records_at(database: apsw.Connection, stretch: int, revision: int) -> dict[str, dict[str, bytes]]:
    """All records as of a revision: the nearest snapshot before it, and every commit since. Raises NotFound."""
    query = "SELECT id, batch FROM snapshots WHERE stretch = ? AND revision <= ? ORDER BY id DESC LIMIT 1"
    found = first_row(database.execute(query, (stretch, revision)))
    if found is None:
        raise _too_early(database)
    snapshot, batch = found
    records: dict[str, dict[str, bytes]] = {}
    for kind, packed in database.execute("SELECT kind, packed FROM pieces WHERE snapshot = ? ORDER BY id", (snapshot,)):
        records.setdefault(kind, {}).update(_PIECES.decode(unpack(packed)))
    query = "SELECT packed FROM batches WHERE id > ? AND stretch = ? AND first_revision <= ? ORDER BY id"
    for (packed,) in database.execute(query, (batch, stretch, revision)):
        for number, _, changes in _BATCHES.decode(unpack(packed)):
            if number > revision:
                break
            for kind, key, value in changes:
                if value is not None:
                    records.setdefault(kind, {})[key] = value
                else:
                    records.get(kind, {}).pop(key, None)
    return records


def earliest_ms(database: apsw.Connection) -> int | None:
    """The first time that can be asked for; None: there is none yet."""
    found = first_row(database.execute("SELECT at_ms FROM snapshots ORDER BY id LIMIT 1"))
    return found[0] if found else None


def _by_revision(database: apsw.Connection, at: str) -> Moment:
    """@REVISION is of the newest stretch that has it; @REVISION-STRETCH is the token of a moment."""
    number, _, stretch = at[1:].partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in (number, stretch or "0")):
        raise Invalid(AT, f"{MESSAGES}, not {at!r:.60}")
    stretches = [int(stretch)] if stretch else [row[0] for row in database.execute(_STRETCHES)]
    for other_stretch in stretches:
        at_ms = _time_in(database, other_stretch, int(number))
        if at_ms is not None:
            return _checked(database, Moment(int(number), at_ms, other_stretch, f"@{int(number)}-{other_stretch}"))
    raise NotFound(f"the history does not have revision {int(number)}{_from_when(database)}", code="not_in_history")


def _time_in(database: apsw.Connection, stretch: int, revision: int) -> int | None:
    """When a revision was committed, if a stretch has it."""
    query = "SELECT revision, packed FROM batches WHERE stretch = ? AND first_revision <= ?"
    found = first_row(database.execute(f"{query} ORDER BY first_revision DESC LIMIT 1", (stretch, revision)))
    if found is not None and found[0] >= revision:
        return _last(found[1], lambda number, _: number <= revision)[1]
    query = "SELECT at_ms FROM snapshots WHERE stretch = ? AND revision = ?"
    found = first_row(database.execute(query, (stretch, revision)))
    return found[0] if found else None


def _by_time(database: apsw.Connection, when_ms: int) -> Moment:
    """The last commit before a time. A snapshot counts also: a stretch may have nothing else yet."""
    query = "SELECT stretch, revision, at_ms FROM snapshots WHERE at_ms <= ? ORDER BY at_ms DESC, id DESC LIMIT 1"
    whole = first_row(database.execute(query, (when_ms,)))
    if whole is None:
        raise _too_early(database)
    stretch, revision, at_ms = whole
    query = "SELECT stretch, packed FROM batches WHERE first_ms <= ? ORDER BY first_ms DESC, id DESC LIMIT 1"
    batch = first_row(database.execute(query, (when_ms,)))
    if batch is not None:
        last, last_ms = _last(batch[1], lambda _, committed_ms: committed_ms <= when_ms)
        if (last_ms, batch[0], last) > (at_ms, stretch, revision):
            stretch, revision, at_ms = batch[0], last, last_ms
    moment = Moment(revision, at_ms, stretch, f"@{revision}-{stretch}", _gap_after(database, stretch, revision))
    return _checked(database, moment)


def _gap_after(database: apsw.Connection, stretch: int, revision: int) -> str:
    """Why what came next is not known, if this was the last of its stretch."""
    query = "SELECT revision FROM batches WHERE stretch = ? ORDER BY first_revision DESC LIMIT 1"
    (last,) = first_row(database.execute(query, (stretch,))) or (0,)
    if last > revision:
        return ""
    following = first_row(database.execute("SELECT gap FROM stretches WHERE id > ? ORDER BY id LIMIT 1", (stretch,)))
    return f"what happened next is not known: {following[0]}" if following and following[0] else ""


def _checked(database: apsw.Connection, moment: Moment) -> Moment:
    query = "SELECT 1 FROM snapshots WHERE stretch = ? AND revision <= ? LIMIT 1"
    if first_row(database.execute(query, (moment.stretch, moment.revision))) is None:
        raise _too_early(database)
    return moment


def _too_early(database: apsw.Connection) -> NotFound:
    return NotFound(f"the history does not go back that far{_from_when(database)}", code="before_history")


def _from_when(database: apsw.Connection) -> str:
    from datetime import UTC, datetime

    first_ms = earliest_ms(database)
    if first_ms is None:
        return "; nothing is written yet"
    return f"; it begins at {datetime.fromtimestamp(first_ms / 1_000, UTC).isoformat(timespec='milliseconds')}"


def _last(packed: bytes, holds: Any) -> tuple[int, int]:
    """The last commit of a batch of which something holds, and when it was; of its first it always does."""
    commits = _BATCHES.decode(unpack(packed))
    found = next((commit for commit in reversed(commits) if holds(commit[0], commit[1])), commits[0])
    return found[0], found[1]


_STRETCHES = "SELECT id FROM stretches ORDER BY id DESC"  # as many as there were restarts with a gap
_INSTANCES = msgspec.msgpack.Decoder(Instance)
_PIECES = msgspec.msgpack.Decoder(dict[str, bytes])
_BATCHES = msgspec.msgpack.Decoder(list[tuple[int, int, list[tuple[str, str, bytes | None]]]])
