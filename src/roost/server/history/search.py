"""Searching the history: finished workloads and events. Every answer is a page that reads a bounded number of rows.

Each query takes the projects that the caller may see; None: all of them.
"""

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from roost.model.errors import Invalid, NotFound
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.opaque import Audit
from roost.model.records.workload import Workload
from roost.schema.history import EventView, OverDetail, OverView
from roost.schema.reason_text import Visible, message_of, reason_view, render
from roost.schema.work import InstanceDetail
from roost.server.history.database import AUDIT_COLUMNS
from roost.server.views.work import detail_of, never_ran, unit_name

SCAN_MAX = 100_000  # rows read for one page: a tenth of a second, in a thread of its own
DIGITS_MAX = 18
EVENT_COLUMNS = "at_ms, id, revision, kind, project, workload, number, node, what, message, who"

Projects = frozenset[str] | None


class Period(msgspec.Struct, frozen=True):
    """From a time (inclusive) to a time (exclusive)."""

    since_ms: int = 0
    until_ms: int = 1 << 62


class EventsWanted(msgspec.Struct, frozen=True):
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
    """Finished workloads, newest first, whose name has this prefix; and the cursor of the next page."""
    inner = (
        "SELECT finished_ms, serial, project, name, state FROM workloads INDEXED BY workloads_at"
        " WHERE finished_ms >= ? AND finished_ms < ? AND (finished_ms, serial) < (?, ?)"
        " ORDER BY finished_ms DESC, serial DESC"
    )
    condition, given = _filters({"project": project, "state": state}, projects)
    if name:
        condition += f" AND substr(name, 1, {len(name)}) = ?"
        given.append(name)
    bounds = (period.since_ms, period.until_ms, *_cursor(after))
    rows, following = _page(database, inner, bounds, condition, given, limit)
    found = [_over(database, serial, projects) for _, serial, *_ in rows]
    return [item[0] for item in found if item is not None], following


def lives_of(
    database: apsw.Connection, project: str, name: str, limit: int, before: int, projects: Projects = None
) -> tuple[list[OverDetail], int | None]:
    """All finished workloads of one name, newest first; the serial before which the next page begins."""
    unknown = f"the history has nothing of the name {project}/{name}; what still lives is in /v1/workloads"
    if projects is not None and project not in projects:
        raise NotFound(unknown)
    query = "SELECT serial FROM workloads WHERE project = ? AND name = ? AND serial < ? ORDER BY serial DESC LIMIT ?"
    serials = [int(row[0]) for row in database.execute(query, (project, name, before, limit + 1))]
    if not serials and before >= 1 << 62:
        raise NotFound(unknown)
    found = [_detail(database, serial, projects) for serial in serials[:limit]]
    return found, serials[limit - 1] if len(serials) > limit else None


def instances_of(
    database: apsw.Connection, project: str, name: str, serial: int, state: str, limit: int, after: int,
    projects: Projects = None,
) -> tuple[list[InstanceDetail], int | None]:  # fmt: skip
    """The instances of a finished workload, each with its story; those that never ran included."""
    query = "SELECT begun, record FROM workloads WHERE serial = ? AND project = ? AND name = ?"
    row = database.execute(query, (serial, project, name)).get
    if row is None or (projects is not None and project not in projects):
        raise NotFound(f"the history has no {project}/{name} with serial {serial}")
    begun, workload, visible = row[0], _WORKLOADS.decode(row[1]), _visible(projects)
    count = workload.instance_count
    only, given = _filters({"state": state}, None)
    query = f"SELECT record FROM instances WHERE serial = ? AND number > ?{only} ORDER BY number LIMIT {limit}"
    records = database.execute(query, (serial, after, *given))
    items = [detail_of(workload, _INSTANCES.decode(record), visible) for (record,) in records]
    if len(items) == limit:
        return items, items[-1].index
    if not state or state == workload.unstarted_end_state:
        start = max(begun, after + 1)
        stop = min(count, start + limit - len(items))
        unstarted = [never_ran(workload, index, visible) for index in range(start, stop)]
        items += [InstanceDetail(**msgspec.structs.asdict(view)) for view in unstarted]
        if stop < count:
            return items, stop - 1
    return items, None


def search_events(
    database: apsw.Connection, wanted: EventsWanted, limit: int, after: str, projects: Projects = None
) -> tuple[list[EventView], str | None]:
    """Events, newest first, and the cursor of the next page."""
    found_by, bounds = "", list[Any]()
    if wanted.workload and wanted.project:
        found_by, bounds = "project = ? AND workload = ? AND workload <> '' AND", [wanted.project, wanted.workload]
    elif wanted.node:
        found_by, bounds = "node = ? AND node <> '' AND", [wanted.node]
    inner = (
        f"SELECT {EVENT_COLUMNS} FROM events WHERE {found_by} at_ms >= ? AND at_ms < ? AND (at_ms, id) < (?, ?)"
        " ORDER BY at_ms DESC, id DESC"
    )
    bounds += [wanted.period.since_ms, wanted.period.until_ms, *_cursor(after)]
    rows, following = _page(database, inner, bounds, *_event_filters(wanted, projects), limit)
    return [_event(row, _visible(projects)) for row in rows], following


def events_after(
    database: apsw.Connection, wanted: EventsWanted, last: int, limit: int, projects: Projects = None
) -> tuple[list[EventView], int]:
    """Events after one, in the order they were written; and the id of the last one that was read."""
    inner = f"SELECT {EVENT_COLUMNS} FROM events WHERE id > ? ORDER BY id LIMIT {limit}"
    condition, given = _event_filters(wanted, projects)
    rows = database.execute(f"SELECT * FROM ({inner}) WHERE 1{condition}", (last, *given)).fetchall()
    seen = database.execute(f"SELECT max(id) FROM ({inner})", (last,)).get
    return [_event(row, _visible(projects)) for row in rows], last if seen is None else int(seen)


def search_audits(
    database: apsw.Connection, who: str, what: str, limit: int, after: int
) -> tuple[list[Audit], int | None]:
    """Entries of the audit log, newest first, and the number of the last one if there are more. `who`: a principal,
    or its name without the kind before the colon."""
    inner = f"SELECT id, {', '.join(AUDIT_COLUMNS)} FROM audits WHERE id < ? ORDER BY id DESC LIMIT {SCAN_MAX}"
    start = after or 1 << 62
    condition, given = _filters({"what": what}, None)
    if who:
        condition += " AND (who = ? OR substr(who, instr(who, ':') + 1) = ?)"
        given += [who, who]
    query = f"SELECT * FROM ({inner}) WHERE 1{condition} LIMIT {limit + 1}"
    rows: list[Any] = database.execute(query, (start, *given)).fetchall()
    names = [field.name for field in msgspec.structs.fields(Audit)]
    items = [msgspec.convert(dict(zip(names, row, strict=True)), Audit, strict=False) for row in rows[:limit]]
    if len(rows) > limit:
        return items, items[-1].number
    edge = database.execute(
        f"SELECT id FROM audits WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET {SCAN_MAX - 1}", (start,)
    )
    return items, edge.get


def last_event(database: apsw.Connection) -> int:
    return database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").get or 0


def _page(
    database: apsw.Connection, inner: str, bounds: Sequence[Any], condition: str, given: list[Any], limit: int
) -> tuple[list[Any], str | None]:
    """The rows of an ordered query that satisfy a condition, and the cursor of the next page. A row begins with its
    time and its id. At most SCAN_MAX rows are read, so a page may be short."""
    inner += f" LIMIT {SCAN_MAX}"
    rows = database.execute(f"SELECT * FROM ({inner}) WHERE 1{condition} LIMIT {limit}", (*bounds, *given)).fetchall()
    edge: Any = database.execute(f"{inner} OFFSET {SCAN_MAX - 1}", bounds).get if len(rows) < limit else rows[-1]
    return rows, f"{edge[0]}:{edge[1]}" if edge else None


def _detail(database: apsw.Connection, serial: int, projects: Projects) -> OverDetail:
    found = _over(database, serial, projects)
    assert found is not None, f"{serial} was there a moment ago, in the same snapshot"
    view, workload = found
    return OverDetail(
        **msgspec.structs.asdict(view),
        document=msgspec.msgpack.decode(workload.document),
        needs={unit_name(name): amount for name, amount in workload.policy.ask.resources},
    )


def _over(database: apsw.Connection, serial: int, projects: Projects) -> tuple[OverView, Workload] | None:
    query = "SELECT project, name, kind, state, count, submitted_ms, finished_ms, counts, record FROM workloads"
    row = database.execute(f"{query} WHERE serial = ?", (serial,)).get
    if row is None:
        return None
    project, name, kind, state, count, submitted_ms, finished_ms, counts, record = row
    workload, visible = _WORKLOADS.decode(record), _visible(projects)
    found = database.execute("SELECT record FROM instances WHERE serial = ? AND number = 0", (serial,)).get
    first = _INSTANCES.decode(found) if found else None
    reason = workload.reason or (first.reason if first and workload.count == 1 else None)
    return OverView(
        project=project, name=name, serial=serial, kind=kind, state=state, count=count,
        counts=msgspec.msgpack.decode(counts), submitted_ms=submitted_ms, finished_ms=finished_ms,
        message=message_of(reason, visible), reason=reason_view(reason, visible), priority=workload.policy.priority,
        started_ms=(first.started_ms or None) if first else None, node=first.node if first and count == 1 else "",
        exit_code=first.exit_code if first and count == 1 else None, attempts=first.attempt if first else 0,
    ), workload  # fmt: skip


def _visible(projects: Projects) -> Visible | None:
    return None if projects is None else projects.__contains__


def _event(row: Any, visible: Visible | None) -> EventView:
    """An event. A message that is stored as a reason gets its text here."""
    fields = dict(zip(EVENT_COLUMNS.replace("number", "index").split(", "), row, strict=True))
    if isinstance(fields["message"], bytes):
        reason = _REASONS.decode(fields["message"])
        fields["message"], fields["reason"] = render(reason, visible), reason_view(reason, visible)
    return EventView(**fields)


def _event_filters(wanted: EventsWanted, projects: Projects) -> tuple[str, list[Any]]:
    names = ("project", "workload", "node", "kind", "what")
    equal = {"number": wanted.index, **{name: getattr(wanted, name) for name in names}}
    condition, given = _filters(equal, projects)
    if wanted.hidden:
        condition += f" AND kind NOT IN ({', '.join('?' * len(wanted.hidden))})"
    return condition, [*given, *wanted.hidden]


def _filters(equal: dict[str, Any], projects: Projects) -> tuple[str, list[Any]]:
    """Conditions, each after an AND, and the values of their places."""
    wanted = {column: value for column, value in equal.items() if value not in ("", None)}
    condition, given = "".join(f" AND {column} = ?" for column in wanted), list(wanted.values())
    if projects is not None:
        condition += f" AND project IN ({', '.join('?' * len(projects))})"
        given += sorted(projects)
    return condition, given


def _cursor(after: str) -> tuple[int, int]:
    if not after:
        return 1 << 62, 1 << 62
    parts = after.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in parts):
        raise Invalid("after", "this is not the `next` of a page")
    return int(parts[0]), int(parts[1])


_INSTANCES = msgspec.msgpack.Decoder(Instance)
_WORKLOADS = msgspec.msgpack.Decoder(Workload)
_REASONS = msgspec.msgpack.Decoder(Reason)
