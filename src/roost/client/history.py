"""The past: finished workloads, events, the audit log, and the commit of a time."""

import builtins
from collections.abc import Iterator

from roost.client.namespace import DETAILS, Namespace, path_of
from roost.client.transport import Query
from roost.model.records.opaque import Audit
from roost.schema import history as schema
from roost.schema.access.roles import AuditPage
from roost.schema.work import InstanceDetail


class HistoryCalls(Namespace):
    def list(
        self, *, project: str = "", name: str = "", state: str = "", since: str = "", until: str = "",
        limit: int | None = None,
    ) -> builtins.list[schema.OverView]:  # fmt: skip
        """Finished workloads, newest first. `name`: how it begins. Times: RFC 3339, or a duration ago."""
        query: Query = {"project": project, "name": name, "state": state, "since": since, "until": until}
        return self._items("/v1/history", schema.OverPage, query, limit)

    def get(self, project: str, name: str, *, limit: int | None = None) -> builtins.list[schema.OverDetail]:
        """Every finished workload of one name, newest first, with its document."""
        return self._items(path_of("/v1/history/{}/{}", project, name), schema.LifePage, None, limit, DETAILS)

    def instances(
        self, project: str, name: str, serial: int, *, state: str = "", limit: int | None = None
    ) -> builtins.list[InstanceDetail]:
        path = path_of("/v1/history/{}/{}/{}/instances", project, name, str(serial))
        return self._items(path, schema.OverInstancePage, {"state": state}, limit, DETAILS)

    def moment(self, at: str) -> schema.MomentView:
        """The commit of a time (RFC 3339), of a duration ago or of `@REVISION`."""
        return self._get("/v1/history/at", schema.MomentView, {"at": at})


class EventCalls(Namespace):
    def list(
        self, *, project: str = "", workload: str = "", index: int | None = None, node: str = "", kind: str = "",
        what: str = "", since: str = "", until: str = "", limit: int | None = None,
    ) -> builtins.list[schema.EventView]:  # fmt: skip
        query: Query = {
            "project": project, "workload": workload, "index": index, "node": node, "kind": kind, "what": what,
            "since": since, "until": until,
        }  # fmt: skip
        return self._items("/v1/events", schema.EventPage, query, limit)

    def follow(
        self, *, project: str = "", workload: str = "", index: int | None = None, node: str = "", kind: str = "",
        what: str = "", since: int | None = None,
    ) -> Iterator[schema.EventView]:  # fmt: skip
        """Events as they happen, from now on or after an id; resumed when the connection breaks."""
        query: Query = {
            "project": project, "workload": workload, "index": index, "node": node, "kind": kind, "what": what,
            "since": since,
        }  # fmt: skip
        return self._followed("/v1/events/follow", query, {"happened": schema.EventView})


class AuditCalls(Namespace):
    def list(self, *, who: str = "", what: str = "", limit: int | None = None) -> builtins.list[Audit]:
        return self._items("/v1/audit", AuditPage, {"who": who, "what": what}, limit)
