"""The past: the commit of a time, and the state as it was after that commit."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import apsw
import msgspec

from roost.core.replica import mirror
from roost.core.state.allocation import Allocation
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.model.errors import Invalid, NotFound
from roost.model.records.instance import Instance
from roost.model.spec.units import past_ms
from roost.model.states import ALLOCATED, NodeStatus
from roost.ports.store import Change, Snapshot
from roost.server.history.database import Records, unpack

AT = "at"
DIGITS_MAX = 18
MESSAGES = "a time is like 2030-01-31T18:00Z, 2h (ago) or @REVISION"
CONNECTED = frozenset({NodeStatus.READY, NodeStatus.CORDONED, NodeStatus.DRAINING, NodeStatus.DRAINED})


class Moment(msgspec.Struct, frozen=True):
    revision: int
    at_ms: int
    stretch: int
    gap: str = ""  # why it may differ from the requested time

    @property
    def token(self) -> str:
        """The exact name of this commit, for `at`."""
        return f"@{self.revision}-{self.stretch}"


def find_moment(database: apsw.Connection, at: str, now_ms: int) -> Moment:
    """The commit that a time, a duration ago or a @REVISION means. Raises Invalid, NotFound."""
    if at.startswith("@"):
        moment = _by_revision(database, at)
    else:
        try:
            when_ms = past_ms(at, AT, now_ms)
        except Invalid as error:
            raise Invalid(AT, f"{MESSAGES}: {error.message}") from None
        moment = _by_time(database, when_ms)
    query = "SELECT 1 FROM snapshots WHERE stretch = ? AND revision <= ? LIMIT 1"
    if database.execute(query, (moment.stretch, moment.revision)).get is None:
        raise _too_early(database)
    return moment


def state_at(database: apsw.Connection, moment: Moment, settings: Settings) -> State:
    """The state as it was: good for reading, not for deciding."""
    records = records_at(database, moment.stretch, moment.revision)
    instances = records.pop("instance", {})
    changes = [Change(kind, key, value) for kind, things in records.items() for key, value in things.items()]
    state = mirror(Snapshot(moment.revision, changes), settings)
    state.now_ms = moment.at_ms
    _enter(state, instances)
    for name, node in state.nodes.items():
        state.liveness[name].connected = node.status in CONNECTED
    for workload in state.workloads.values():
        if workload.adopted:  # which of its instances never ran is unknown
            progress = state.progress_of(workload)
            progress.placed_count = max(progress.placed_count, workload.count)
    return state


def _enter(state: State, instances: dict[str, bytes]) -> None:
    """What a mirror does per instance. Allocations are summed per node first, which is three times as fast.
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


def records_at(database: apsw.Connection, stretch: int, revision: int) -> Records:
    """All records as of a revision: the nearest snapshot before it, and every commit since. Raises NotFound."""
    query = "SELECT id, batch FROM snapshots WHERE stretch = ? AND revision <= ? ORDER BY id DESC LIMIT 1"
    found = database.execute(query, (stretch, revision)).get
    if found is None:
        raise _too_early(database)
    snapshot, batch = found
    records: Records = {}
    for kind, packed in database.execute("SELECT kind, packed FROM pieces WHERE snapshot = ? ORDER BY id", (snapshot,)):
        records.setdefault(kind, {}).update(_PIECES.decode(unpack(packed)))
    query = "SELECT packed FROM batches WHERE id > ? AND stretch = ? AND first_revision <= ? ORDER BY id"
    for (packed,) in database.execute(query, (batch, stretch, revision)):
        for number, _, changes in _BATCHES.decode(unpack(packed)):
            if number > revision:
                break
            apply_changes(records, changes)
    return records


def apply_changes(records: Records, changes: Iterable[Change]) -> None:
    for change in changes:
        if change.value is not None:
            records.setdefault(change.kind, {})[change.key] = change.value
        else:
            records.get(change.kind, {}).pop(change.key, None)


def earliest_ms(database: apsw.Connection) -> int | None:
    """The first time that can be asked for; None: there is none yet."""
    found: int | None = database.execute("SELECT at_ms FROM snapshots ORDER BY id LIMIT 1").get
    return found


def _by_revision(database: apsw.Connection, at: str) -> Moment:
    """@REVISION is of the newest stretch that has it; @REVISION-STRETCH is the token of a moment."""
    number, _, stretch = at[1:].partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in (number, stretch or "0")):
        raise Invalid(AT, f"{MESSAGES}, not {at!r:.60}")
    every = "SELECT id FROM stretches ORDER BY id DESC"  # as many as there were restarts with a gap
    for candidate in [int(stretch)] if stretch else [row[0] for row in database.execute(every)]:
        at_ms = _time_in(database, candidate, int(number))
        if at_ms is not None:
            return Moment(int(number), at_ms, candidate)
    raise NotFound(f"the history does not have revision {int(number)}{_from_when(database)}", code="not_in_history")


def _time_in(database: apsw.Connection, stretch: int, revision: int) -> int | None:
    """When a revision was committed, if a stretch has it."""
    query = "SELECT revision, packed FROM batches WHERE stretch = ? AND first_revision <= ?"
    found = database.execute(f"{query} ORDER BY first_revision DESC LIMIT 1", (stretch, revision)).get
    if found is not None and found[0] >= revision:
        return _last(found[1], lambda number, _: number <= revision)[1]
    query = "SELECT at_ms FROM snapshots WHERE stretch = ? AND revision = ? LIMIT 1"
    at_ms: int | None = database.execute(query, (stretch, revision)).get
    return at_ms


def _by_time(database: apsw.Connection, when_ms: int) -> Moment:
    """The last commit before a time. A snapshot counts also: a stretch may have nothing else yet."""
    query = "SELECT at_ms, stretch, revision FROM snapshots WHERE at_ms <= ? ORDER BY at_ms DESC, id DESC LIMIT 1"
    found = database.execute(query, (when_ms,)).get
    if found is None:
        raise _too_early(database)
    query = "SELECT stretch, packed FROM batches WHERE first_ms <= ? ORDER BY first_ms DESC, id DESC LIMIT 1"
    batch = database.execute(query, (when_ms,)).get
    if batch is not None:
        last, last_ms = _last(batch[1], lambda _, committed_ms: committed_ms <= when_ms)
        found = max(found, (last_ms, batch[0], last))
    at_ms, stretch, revision = found
    return Moment(revision, at_ms, stretch, _gap_after(database, stretch, revision))


def _gap_after(database: apsw.Connection, stretch: int, revision: int) -> str:
    """Why the next commit is unknown, if this was the last of its stretch."""
    query = "SELECT revision FROM batches WHERE stretch = ? ORDER BY first_revision DESC LIMIT 1"
    if (database.execute(query, (stretch,)).get or 0) > revision:
        return ""
    gap = database.execute("SELECT gap FROM stretches WHERE id > ? ORDER BY id LIMIT 1", (stretch,)).get
    return f"what happened next is not known: {gap}" if gap else ""


def _too_early(database: apsw.Connection) -> NotFound:
    return NotFound(f"the history does not go back that far{_from_when(database)}", code="before_history")


def _from_when(database: apsw.Connection) -> str:
    first_ms = earliest_ms(database)
    if first_ms is None:
        return "; nothing is written yet"
    return f"; it begins at {datetime.fromtimestamp(first_ms / 1_000, UTC).isoformat(timespec='milliseconds')}"


def _last(packed: bytes, holds: Callable[[int, int], bool]) -> tuple[int, int]:
    """The last commit of a batch whose revision and time satisfy a condition; its first always does."""
    commits = _BATCHES.decode(unpack(packed))
    return next((commit[:2] for commit in reversed(commits) if holds(*commit[:2])), commits[0][:2])


_INSTANCES = msgspec.msgpack.Decoder(Instance)
_PIECES = msgspec.msgpack.Decoder(dict[str, bytes])
_BATCHES = msgspec.msgpack.Decoder(list[tuple[int, int, list[Change]]])
