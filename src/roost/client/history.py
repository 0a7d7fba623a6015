"""The past: finished workloads, events, the audit log, and the commit of a time."""

import builtins
from collections.abc import Iterator

import msgspec

from roost.client.namespace import DETAILS, Namespace
from roost.client.stream import StreamFollower
from roost.client.transport import Query, segment
from roost.model.records.opaque import Audit
from roost.schema.access import AuditPage
from roost.schema.history import (
    EventPage,
    EventView,
    LifePage,
    MomentView,
    OverDetail,
    OverInstancePage,
    OverPage,
    OverView,
)
from roost.schema.work import InstanceDetail


class HistoryCalls(Namespace):
    """Finished workloads."""

    def list(
        self, *, project: str = "", name: str = "", state: str = "", since: str = "", until: str = "",
        limit: int | None = None,
    ) -> builtins.list[OverView]:  # fmt: skip
        """Finished workloads, newest first. `name`: how it begins. Times: RFC 3339, or a duration ago."""
        query: Query = {"project": project, "name": name, "state": state, "since": since, "until": until}
        return self._items("/v1/history", OverPage, query, limit)

    def get(self, project: str, name: str, *, limit: int | None = None) -> builtins.list[OverDetail]:
        """Every finished workload of one name, newest first, with its document."""
        return self._items(f"/v1/history/{segment(project)}/{segment(name)}", LifePage, None, limit, DETAILS)

    def instances(
        self, project: str, name: str, serial: int, *, state: str = "", limit: int | None = None
    ) -> builtins.list[InstanceDetail]:
        """The instances of a finished workload, each with its story."""
        path = f"/v1/history/{segment(project)}/{segment(name)}/{serial}/instances"
        return self._items(path, OverInstancePage, {"state": state}, limit, DETAILS)

    def moment(self, at: str) -> MomentView:
        """The commit of a time (RFC 3339), of a duration ago or of `@REVISION`."""
        return self._get("/v1/history/at", MomentView, {"at": at})


class EventCalls(Namespace):
    """Transitions and requests."""

    def list(
        self, *, project: str = "", workload: str = "", index: int | None = None, node: str = "", kind: str = "",
        what: str = "", since: str = "", until: str = "", limit: int | None = None,
    ) -> builtins.list[EventView]:  # fmt: skip
        """Events, newest first."""
        query = _wanted(project, workload, index, node, kind, what)
        return self._items("/v1/events", EventPage, {**query, "since": since, "until": until}, limit)

    def follow(
        self, *, project: str = "", workload: str = "", index: int | None = None, node: str = "", kind: str = "",
        what: str = "", since: int | None = None,
    ) -> Iterator[EventView]:  # fmt: skip
        """Events as they happen, from now on or after an id; resumed when the connection breaks."""
        query: Query = {**_wanted(project, workload, index, node, kind, what), "since": since}
        with StreamFollower(lambda last_id: self._transport.stream("/v1/events/follow", query, last_id)) as follower:
            while True:
                event = follower.next()
                if event is not None and event.name == "happened":
                    yield msgspec.json.decode(event.data, type=EventView)


class AuditCalls(Namespace):
    """The requests that changed something."""

    def list(self, *, who: str = "", what: str = "", limit: int | None = None) -> builtins.list[Audit]:
        """Changes on request, newest first."""
        return self._items("/v1/audit", AuditPage, {"who": who, "what": what}, limit)


def _wanted(project: str, workload: str, index: int | None, node: str, kind: str, what: str) -> Query:
    return {"project": project, "workload": workload, "index": index, "node": node, "kind": kind, "what": what}
