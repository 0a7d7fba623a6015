"""Schedules: jobs that run again and again. Types, and the client's calls for them."""

import msgspec

from roost.client.transport import Query, Transport, segment
from roost.client.types import Workload

PAGE = 100  # as much as a server gives at once


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a schedule, which is a workload of its own. `tick_ms`: the moment that it is for."""

    name: str
    state: str
    tick_ms: int
    finished_ms: int | None = None
    cause: str = ""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A job with a schedule. `cause`: what it could not do at its last tick; of one that has ended, why."""

    project: str
    name: str
    cron: str
    zone: str
    overlap: str
    catch_up: int
    keep: int
    ended: bool
    cause: str = ""
    next_ms: list[int] = []
    last_ms: int | None = None
    runs: list[Run] = []


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules by project and name."""

    revision: int
    items: list[Schedule]
    next: str | None = None


class ScheduleCalls:
    """What a client asks about schedules."""

    _transport: Transport

    def schedules(self, *, project: str = "", coming: int = 1) -> list[Schedule]:
        """All schedules, with so many of their coming ticks."""
        found: list[Schedule] = []
        after: str | None = None
        while True:
            query: Query = {"project": project or None, "next": coming, "limit": PAGE, "after": after}
            body = self._transport.call("GET", "/v1/schedules", query).body
            page = msgspec.json.decode(body, type=SchedulePage)
            found += page.items
            if page.next is None:
                return found
            after = page.next

    def schedule(self, project: str, name: str, *, coming: int = 1) -> Schedule:
        """One schedule."""
        body = self._transport.call("GET", _path(project, name), {"next": coming}).body
        return msgspec.json.decode(body, type=Schedule)

    def run_schedule(self, project: str, name: str) -> Workload:
        """Let a schedule run once now, besides its ticks. The run is a workload of its own."""
        body = self._transport.call("POST", f"{_path(project, name)}/run", None, b"").body
        return msgspec.json.decode(body, type=Workload)


def _path(project: str, name: str) -> str:
    return f"/v1/schedules/{segment(project)}/{segment(name)}"
