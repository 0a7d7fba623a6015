"""Searching the history: finished workloads and events. Every answer is a page that looks at a bounded number.

Each query takes the projects that the caller may see; None: all of them.
"""

from typing import Any

import apsw
import msgspec

from roost.model.errors import Invalid, NotFound
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.schema.history import EventView, OverDetail, OverView
from roost.schema.reason_text import Visible, message_of, reason_view, render
from roost.schema.work import InstanceDetail
from roost.server.history.database import first_row
from roost.server.views.work import decision_view, instance_view, never_ran, story_view, unit_name

SCAN_MAX = 100_000  # rows looked at for one page: a tenth of a second, in a thread of its own
DIGITS_MAX = 18

Projects = frozenset[str] | None


class Period(msgspec.Struct, frozen=True):
    """From when to when; the end does not count."""

    since_ms: int = 0
    until_ms: int = 1 << 62


class EventsWanted(msgspec.Struct, frozen=True):
    """Which events are wanted."""

    project: str = ""
    workload: str = ""
    index: int | None = None
    node: str = ""
    kind: str = ""
    what: str = ""
    period: Period = Period()
    hidden: tuple[str, ...] = ()  # kinds that the caller may not see


def search_workloads(
    database: apsw.Connection, project: str, name: str, state: str, period: Period, limit: int, after: str,
    projects: Projects = None,
) -> tuple[list[OverView], str | None]:  # fmt: skip
    """Workloads that are over, newest first, of a name that begins so; and where the next page begins."""
    last_ms, last_serial = _cursor(after)
    bounds = (period.since_ms, period.until_ms, last_ms, last_serial)
    inner = (
        "SELECT finished_ms, serial, project, name, state FROM workloads INDEXED BY workloads_at"
        " WHERE finished_ms >= ?1 AND finished_ms < ?2 AND (finished_ms, serial) < (?3, ?4)"
        f" ORDER BY finished_ms DESC, serial DESC LIMIT {SCAN_MAX}"
    )
    message, given = _filters({"project": project, "state": state}, projects, first=5)
    if name:
        message += f" AND substr(name, 1, {len(name)}) = ?{5 + len(given)}"
        given.append(name)
    query = f"SELECT finished_ms, serial FROM ({inner}) WHERE 1 {message} LIMIT {limit}"
    keys: list[Any] = database.execute(query, (*bounds, *given)).fetchall()
    items = [view for _, serial in keys if (view := _view(database, serial, projects)) is not None]
    if len(keys) == limit:
        return items, f"{keys[-1][0]}:{keys[-1][1]}"
    edge = first_row(database.execute(f"{inner} OFFSET {SCAN_MAX - 1}", bounds))
    return items, f"{edge[0]}:{edge[1]}" if edge else None


def lives_of(
    database: apsw.Connection, project: str, name: str, limit: int, before: int, projects: Projects = None
) -> tuple[list[OverDetail], int | None]:
    """Everything that had a name and is over, newest first; the serial before which the next page begins."""
    if projects is not None and project not in projects:
        raise _unknown(project, name)
    query = (
        "SELECT serial FROM workloads WHERE project = ? AND name = ? AND serial < ? ORDER BY serial DESC"
        f" LIMIT {limit + 1}"
    )
    serials = [int(row[0]) for row in database.execute(query, (project, name, before))]
    if not serials and before >= 1 << 62:
        raise _unknown(project, name)
    found = [_detail(database, serial, projects) for serial in serials[:limit]]
    return found, serials[limit - 1] if len(serials) > limit else None


def instances_of(
    database: apsw.Connection, project: str, name: str, serial: int, state: str, limit: int, after: int,
    projects: Projects = None,
) -> tuple[list[InstanceDetail], int | None]:  # fmt: skip
    """The instances of a workload that is over, each with its story; those that never ran included."""
    query = "SELECT count, begun, record FROM workloads WHERE serial = ? AND project = ? AND name = ?"
    row = first_row(database.execute(query, (serial, project, name)))
    if row is None or (projects is not None and project not in projects):
        raise NotFound(f"the history has no {project}/{name} with serial {serial}")
    count, begun, workload = row[0], row[1], _WORKLOADS.decode(row[2])
    only = "AND state = ?" if state else ""
    query = f"SELECT record FROM instances WHERE serial = ? AND number > ? {only} ORDER BY number LIMIT {limit}"
    given = (serial, after, state) if state else (serial, after)
    items = [
        _instance(workload, _INSTANCES.decode(record), _visible(projects))
        for (record,) in database.execute(query, given)
    ]
    if len(items) == limit:
        return items, items[-1].index
    if not state or state == workload.unstarted_end_state:
        stop = min(count, max(begun, after + 1) + limit - len(items))
        fresh = range(max(begun, after + 1), stop)
        items += [
            InstanceDetail(**msgspec.structs.asdict(never_ran(workload, index, _visible(projects)))) for index in fresh
        ]
        if stop < count:
            return items, stop - 1
    return items, None


def search_events(
    database: apsw.Connection, wanted: EventsWanted, limit: int, after: str, projects: Projects = None
) -> tuple[list[EventView], str | None]:
    """Events, newest first, and where the next page begins."""
    last_ms, last_id = _cursor(after)
    bounds: list[Any] = [wanted.period.since_ms, wanted.period.until_ms, last_ms, last_id]
    found_by = ""
    if wanted.workload and wanted.project:
        found_by, bounds = (
            "project = ?5 AND workload = ?6 AND workload <> '' AND",
            [*bounds, wanted.project, wanted.workload],
        )
    elif wanted.node:
        found_by, bounds = "node = ?5 AND node <> '' AND", [*bounds, wanted.node]
    inner = (
        f"SELECT * FROM events WHERE {found_by} at_ms >= ?1 AND at_ms < ?2 AND (at_ms, id) < (?3, ?4)"
        f" ORDER BY at_ms DESC, id DESC LIMIT {SCAN_MAX}"
    )
    message, given = _event_filters(wanted, projects, first=len(bounds) + 1)
    rows = database.execute(f"SELECT * FROM ({inner}) WHERE 1 {message} LIMIT {limit}", (*bounds, *given)).fetchall()
    items = [_event(row, _visible(projects)) for row in rows]
    if len(items) == limit:
        return items, f"{items[-1].at_ms}:{items[-1].id}"
    edge = first_row(database.execute(f"SELECT at_ms, id FROM ({inner} OFFSET {SCAN_MAX - 1})", bounds))
    return items, f"{edge[0]}:{edge[1]}" if edge else None


def events_after(
    database: apsw.Connection, wanted: EventsWanted, last: int, limit: int, projects: Projects = None
) -> tuple[list[EventView], int]:
    """Events in the order they were written, after one; and the last one that was looked at."""
    inner = f"SELECT * FROM events WHERE id > ?1 ORDER BY id LIMIT {limit}"
    message, given = _event_filters(wanted, projects, first=2)
    rows = database.execute(f"SELECT * FROM ({inner}) WHERE 1 {message}", (last, *given)).fetchall()
    seen = database.execute(f"SELECT max(id) FROM ({inner})", (last,)).get
    return [_event(row, _visible(projects)) for row in rows], int(seen) if isinstance(seen, int) else last


def last_event(database: apsw.Connection) -> int:
    """The newest event there ever was."""
    found = first_row(database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'"))
    return int(found[0]) if found else 0


def _view(database: apsw.Connection, serial: int, projects: Projects) -> OverView | None:
    fields = _fields(database, serial, _visible(projects))
    return OverView(**fields[0]) if fields else None


def _detail(database: apsw.Connection, serial: int, projects: Projects) -> OverDetail:
    found = _fields(database, serial, _visible(projects))
    assert found is not None, f"{serial} was there a moment ago, in the same snapshot"
    fields, workload = found
    return OverDetail(
        **fields,
        document=msgspec.msgpack.decode(workload.document),
        needs={unit_name(name): amount for name, amount in workload.policy.ask.resources},
    )


def _fields(
    database: apsw.Connection, serial: int, visible: Visible | None
) -> tuple[dict[str, Any], Workload] | None:  # fmt: skip
    query = "SELECT project, name, kind, state, count, submitted_ms, finished_ms, counts, record FROM workloads"
    row = first_row(database.execute(f"{query} WHERE serial = ?", (serial,)))
    if row is None:
        return None
    workload = _WORKLOADS.decode(row[8])
    query = "SELECT record FROM instances WHERE serial = ? AND number = 0"
    found = first_row(database.execute(query, (serial,)))
    first = _INSTANCES.decode(found[0]) if found else None
    reason = workload.reason or (first.reason if first and workload.count == 1 else None)
    fields = dict(
        zip(("project", "name", "kind", "state", "count", "submitted_ms", "finished_ms"), row[:7], strict=True)
    )
    return {
        **fields,
        "serial": serial,
        "counts": msgspec.msgpack.decode(row[7]),
        "message": message_of(reason, visible),
        "reason": reason_view(reason, visible),
        "priority": workload.policy.priority,
        "started_ms": (first.started_ms or None) if first else None,
        "node": first.node if first else "",
        "exit_code": first.exit_code if first else None,
        "attempts": first.attempt if first else 0,
    }, workload


def _instance(workload: Workload, instance: Instance, visible: Visible | None) -> InstanceDetail:
    return InstanceDetail(
        **msgspec.structs.asdict(instance_view(instance, visible)),
        token=instance.token,
        devices=list(instance.devices),
        ports=dict(zip(workload.policy.ports, instance.ports, strict=False)),
        decision=decision_view(instance.decision) if instance.decision else None,
        story=story_view(instance.story, visible),
    )


def _visible(projects: Projects) -> Visible | None:
    return None if projects is None else projects.__contains__


def _event(row: Any, visible: Visible | None) -> EventView:
    """An event. What has a reason keeps it as data, and gets its sentence here."""
    names = ("id", "at_ms", "revision", "kind", "project", "workload", "index", "node", "what", "message", "who")
    fields = dict(zip(names, row, strict=True))
    if isinstance(fields["message"], bytes):
        reason = _REASONS.decode(fields["message"])
        fields["message"], fields["reason"] = render(reason, visible), reason_view(reason, visible)
    return EventView(**fields)


def _event_filters(wanted: EventsWanted, projects: Projects, first: int) -> tuple[str, list[Any]]:
    equal = {
        "project": wanted.project,
        "workload": wanted.workload,
        "number": wanted.index,
        "node": wanted.node,
        "kind": wanted.kind,
        "what": wanted.what,
    }
    message, given = _filters(equal, projects, first)
    if wanted.hidden:
        places = ", ".join(f"?{first + len(given) + number}" for number in range(len(wanted.hidden)))
        message += f" AND kind NOT IN ({places})"
        given += wanted.hidden
    return message, given


def _filters(equal: dict[str, Any], projects: Projects, first: int) -> tuple[str, list[Any]]:
    """Conditions with numbered places from `first` on, and what goes there."""
    message, given = "", list[Any]()
    for column, value in equal.items():
        if value not in ("", None):
            message += f" AND {column} = ?{first + len(given)}"
            given.append(value)
    if projects is not None:
        places = ", ".join(f"?{first + len(given) + number}" for number in range(len(projects)))
        message += f" AND project IN ({places})"
        given += sorted(projects)
    return message, given


def _cursor(after: str) -> tuple[int, int]:
    if not after:
        return 1 << 62, 1 << 62
    parts = after.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in parts):
        raise Invalid("after", "this is not the `next` of a page")
    return int(parts[0]), int(parts[1])


def _unknown(project: str, name: str) -> NotFound:
    return NotFound(f"the history has nothing of the name {project}/{name}; what still lives is in /v1/workloads")


_INSTANCES = msgspec.msgpack.Decoder(Instance)
_WORKLOADS = msgspec.msgpack.Decoder(Workload)
_REASONS = msgspec.msgpack.Decoder(Reason)
