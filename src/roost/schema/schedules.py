"""Schedules and their runs."""

import msgspec

from roost.schema.page import Page
from roost.schema.reason_text import ReasonView


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a schedule, which is a workload of its own. `tick_ms`: the moment that it is for."""

    name: str
    state: str
    tick_ms: int
    finished_ms: int | None = None
    message: str = ""
    reason: ReasonView | None = None  # the message as data


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A job with a schedule. `message`: what it could not do at its last tick; of one that has ended, why."""

    project: str
    name: str
    cron: str
    zone: str
    overlap: str
    catch_up: int
    history_limit: int
    ended: bool
    paused: bool = False  # during maintenance ticks make no runs; `catch_up` decides about them afterwards
    message: str = ""
    reason: ReasonView | None = None  # the message as data
    next_ms: list[int] = []  # the coming ticks; none: it has ended, or never comes again
    last_ms: int | None = None  # the tick of the last run
    runs: list[RunView] = []  # the last ones, newest first


class SchedulePage(Page[ScheduleView, str], frozen=True):
    """Schedules by project and name. There are more as long as `next` is given, which goes into `after`."""
