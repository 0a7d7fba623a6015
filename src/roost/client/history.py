"""The past: what is over, what happened, and which commit a time means. Types, and the client's calls for them."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

import msgspec

from roost.client import types
from roost.client.stream import Follower
from roost.client.transport import Query, Transport, segment

PAGE = 1_000  # as much as a server gives at once
DETAILS = 100  # the same for what is large

T = TypeVar("T")


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that is over. `serial` tells several of one name apart; document and needs are there for one name."""

    project: str
    name: str
    serial: int
    kind: str
    state: str
    count: int
    counts: dict[str, int]
    submitted_ms: int
    started_ms: int | None = None
    finished_ms: int
    node: str = ""
    exit_code: int | None = None
    attempts: int = 0
    cause: str = ""
    priority: int = 0
    document: dict[str, Any] = {}
    needs: dict[str, int] = {}


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """An event. `kind` says to what it happened, `what` says what."""

    id: int
    at_ms: int
    revision: int
    kind: str
    project: str = ""
    workload: str = ""
    index: int | None = None
    node: str = ""
    what: str
    words: str = ""
    who: str = ""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One commit of the past. `token` goes into `at`."""

    token: str
    revision: int
    at_ms: int
    earliest_ms: int | None = None
    gap: str = ""


class OverPage(msgspec.Struct, frozen=True):
    """Workloads that are over."""

    items: list[Over]
    next: str | int | None = None


class OverInstancePage(msgspec.Struct, frozen=True):
    """Their instances."""

    items: list[types.Instance]
    next: int | None = None


class HappenedPage(msgspec.Struct, frozen=True):
    """Events."""

    items: list[Happened]
    next: str | None = None


class HistoryCalls:
    """What a client can ask about the past."""

    _transport: Transport

    def history(
        self, *, project: str = "", name: str = "", state: str = "", since: str = "", until: str = "",
        limit: int | None = None,
    ) -> list[Over]:  # fmt: skip
        """Workloads that are over, newest first. `name`: how it begins. Times: RFC 3339, or a duration ago."""
        query: Query = {"project": project, "name": name, "state": state, "since": since, "until": until}
        return list(islice(self._paged("/v1/history", query, OverPage, limit, PAGE), limit))

    def lives(self, project: str, name: str, *, limit: int | None = None) -> list[Over]:
        """Everything of one name that is over, newest first, with its document."""
        pages = self._paged(f"/v1/history/{segment(project)}/{segment(name)}", {}, OverPage, limit, DETAILS)
        return list(islice(pages, limit))

    def past_instances(
        self, project: str, name: str, serial: int, *, state: str = "", limit: int | None = None
    ) -> list[types.Instance]:
        """The instances of a workload that is over, each with its story."""
        path = f"/v1/history/{segment(project)}/{segment(name)}/{serial}/instances"
        return list(islice(self._paged(path, {"state": state}, OverInstancePage, limit, DETAILS), limit))

    def events(
        self, *, project: str = "", workload: str = "", index: int | None = None, node: str = "", kind: str = "",
        what: str = "", since: str = "", until: str = "", limit: int | None = None,
    ) -> list[Happened]:  # fmt: skip
        """What happened, newest first."""
        query: Query = {
            "project": project, "workload": workload, "index": index, "node": node, "kind": kind, "what": what,
            "since": since, "until": until,
        }  # fmt: skip
        return list(islice(self._paged("/v1/events", query, HappenedPage, limit, PAGE), limit))

    def follow_events(
        self, *, project: str = "", workload: str = "", index: int | None = None, node: str = "", kind: str = "",
        what: str = "", since: int | None = None,
    ) -> Iterator[Happened]:  # fmt: skip
        """What happens, as it does, from now on or after the event with an id; resumed when the connection breaks."""
        query: Query = {
            "project": project, "workload": workload, "index": index, "node": node, "kind": kind, "what": what,
            "since": since,
        }  # fmt: skip
        with Follower(lambda last_id: self._transport.stream("/v1/events/follow", query, last_id)) as follower:
            while True:
                event = follower.next()
                if event is not None and event.name == "happened":
                    yield msgspec.json.decode(event.data, type=Happened)

    def moment(self, at: str) -> Moment:
        """Which commit a time (RFC 3339), a duration ago or an `@REVISION` means."""
        return msgspec.json.decode(self._transport.call("GET", "/v1/history/at", {"at": at}).body, type=Moment)

    def _paged(self, path: str, query: Query, kind: type[Any], limit: int | None, most: int) -> Iterator[Any]:
        after: str | int | None = None
        while True:
            asked: Query = {**query, "limit": min(limit or most, most), "after": after}
            page = msgspec.json.decode(self._transport.call("GET", path, asked).body, type=kind)
            yield from page.items
            after = page.next
            if after is None:
                return
