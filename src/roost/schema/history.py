"""Finished workloads, events, and points in time."""

from typing import Any

import msgspec

from roost.schema.page import HistoryPage
from roost.schema.reason_text import ReasonView
from roost.schema.work import InstanceDetail


class OverView(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that is over. `serial` tells several of one name apart. Node and exit code: of its only instance."""

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
    message: str = ""
    reason: ReasonView | None = None  # the message as data
    priority: int = 0


class OverDetail(OverView, frozen=True, kw_only=True):
    """A workload that is over, with the document its user wrote and what one instance needed."""

    document: dict[str, Any]
    needs: dict[str, int]


class OverPage(HistoryPage[OverView, str], frozen=True):
    """Workloads that are over, newest first. There are more as long as `next` is given; a page may be short."""


class LifePage(HistoryPage[OverDetail, int], frozen=True):
    """All workloads of one name that are over, newest first."""


class OverInstancePage(HistoryPage[InstanceDetail, int], frozen=True):
    """Instances of a workload that is over, by index."""


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened. `kind` says to what, `what` says what: the state it came into, or what was asked."""

    id: int
    at_ms: int
    revision: int
    kind: str
    project: str = ""
    workload: str = ""
    index: int | None = None
    node: str = ""
    what: str
    message: str = ""
    reason: ReasonView | None = None  # the message as data, where there is a reason
    who: str = ""


class EventPage(HistoryPage[EventView, str], frozen=True):
    """Events, newest first. There are more as long as `next` is given; a page may be short."""


class MomentView(msgspec.Struct, frozen=True, kw_only=True):
    """What a time means: `token` goes into `at`, and is the same commit whenever it is used."""

    token: str
    revision: int
    at_ms: int
    earliest_ms: int | None
    gap: str = ""
