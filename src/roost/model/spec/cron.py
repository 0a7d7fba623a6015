"""When a schedule is due: lines of cron in a time zone, of the tzdata package: the same everywhere.

A line that names its minute and its hour runs once a day, also on the two days on which the clocks change: an hour that
is skipped is made up for right after it, and an hour that comes twice counts once. A line with a star in one of them
runs as time passes: so many times more in the long night, so many less in the short one. That is what cron does.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from roost.model.errors import Invalid
from roost.model.records.workload import Schedule
from roost.model.spec.names import check_text

FIELDS = 5  # minute, hour, day of the month, month, day of the week: nothing runs every second
HOUR_MS = 3_600_000
AMBIGUOUS_MAX = 1_500  # ticks of an hour that comes twice which came the first time already; no zone repeats a day
ZONES_MAX = 1_024  # all that there are: some 600, of a few kilobytes each
SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,40}(?:/[A-Za-z0-9_+-]{1,40}){0,3}")
_WRONG = {
    "Bad minute": "the minute is a number from 0 to 59, a list, a range, or a star",
    "Bad hour": "the hour is a number from 0 to 23, a list, a range, or a star",
    "Bad day-of-month": "the day is a number from 1 to 31 that its months have, L for the last one, or a star",
    "Bad month": "the month is a number from 1 to 12, a name such as JAN, or a star",
    "Bad day-of-week": "the weekday is a number from 0 (Sunday) to 7, a name as MON, MON#1 for the first, or a star",
}


def next_tick(schedule: Schedule, after_ms: int) -> int | None:
    """The first moment after a moment at which a schedule is due; None: it never is again."""
    start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone_named(schedule.zone))
    coming = CronSim(line_of(schedule.cron), start)
    for _ in range(AMBIGUOUS_MAX):  # in the hour that comes twice, cron counts from the first time it came
        found = next(coming, None)
        if found is None:
            return None
        moment = int(found.timestamp()) * 1000
        if moment > after_ms:
            return moment
    return None


def ticks_between(schedule: Schedule, after_ms: int, until_ms: int, most: int) -> tuple[list[int], bool]:
    """The last ticks after a moment and up to another, at most so many of them; and whether there were more.

    After an outage of years there may be millions: they are looked for from the end, in spans that double.
    """
    span_ms = HOUR_MS
    while True:
        start_ms = max(after_ms, until_ms - span_ms)
        found: list[int] = []
        tick = next_tick(schedule, start_ms)
        while tick is not None and tick <= until_ms:
            found.append(tick)
            tick = next_tick(schedule, tick)
        if start_ms == after_ms or len(found) > most:
            return found[len(found) - min(most, len(found)) :], len(found) > most
        span_ms *= 2


def local_time(schedule: Schedule, moment_ms: int) -> datetime:
    """A moment on the clocks of a schedule's zone; its `fold` is 1 in an hour that comes for the second time."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).astimezone(zone_named(schedule.zone))


def local_minute(zone: str, moment_ms: int) -> str:
    """A moment in a time zone with the offset from UTC, which tells apart the two hours of a long night."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).astimezone(zone_named(zone)).isoformat(" ", "minutes")


def check_cron(line: str, path: str) -> None:
    check_text(line, path)
    if len(line_of(line).split()) != FIELDS:
        message = f"a line has five fields (minute hour day month weekday) or is one of {', '.join(SHORTHANDS)}"
        raise Invalid(path, f"{message}: {line!r:.60}")
    try:
        if next(CronSim(line_of(line), datetime(2024, 1, 1, tzinfo=UTC)), None) is None:
            raise Invalid(path, f"{line!r:.60} never comes")
    except CronSimError as error:
        message = _WRONG.get(str(error), str(error).lower())
        raise Invalid(path, f"{line!r:.60} cannot be read: {message}") from None


def check_zone(name: str, path: str) -> None:
    try:
        zone_named(name)
    except (OSError, ValueError):
        raise Invalid(path, f"there is no time zone {name!r:.60}; they are named like Europe/Berlin") from None


def line_of(line: str) -> str:
    return SHORTHANDS.get(line, line)


@lru_cache(maxsize=ZONES_MAX)
def zone_named(name: str) -> ZoneInfo:
    """From the tzdata package, whatever the machine has."""
    if _ZONE.fullmatch(name) is None:
        raise ValueError(name)
    from importlib import resources  # a twelfth of the time in which a command starts; few commands name a zone

    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
