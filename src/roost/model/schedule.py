"""When a schedule is due: lines of cron in a time zone, of the tzdata package: the same everywhere."""

from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from roost.model.errors import Invalid
from roost.model.names import check_text
from roost.model.workload import Schedule

FIELDS = 5  # minute, hour, day of the month, month, day of the week: nothing runs every second
SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


def next_tick(schedule: Schedule, after_ms: int) -> int | None:
    """The first moment after a moment at which a schedule is due; None: it never is again."""
    start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone_named(schedule.zone))
    try:
        found = next(CronSim(line_of(schedule.cron), start))
    except StopIteration:
        return None
    return int(found.timestamp()) * 1000


def check_cron(line: str, path: str) -> None:
    """Refuse what is not a line of cron, or never comes."""
    check_text(line, path)
    if len(line_of(line).split()) != FIELDS:
        known = ", ".join(SHORTHANDS)
        raise Invalid(
            path, f"a line has five fields (minute hour day month weekday) or is one of {known}: {line!r:.60}"
        )
    try:
        if next(CronSim(line_of(line), datetime(2024, 1, 1, tzinfo=UTC)), None) is None:
            raise Invalid(path, f"{line!r:.60} never comes")
    except CronSimError as error:
        raise Invalid(path, f"{line!r:.60} cannot be read: {str(error).lower()}") from None


def check_zone(name: str, path: str) -> None:
    """Refuse a time zone that nobody knows."""
    try:
        zone_named(name)
    except (OSError, ValueError, ModuleNotFoundError):
        raise Invalid(path, f"there is no time zone {name!r:.60}; they are named like Europe/Berlin") from None


def line_of(line: str) -> str:
    """The five fields of a line, also of one that has a name."""
    return SHORTHANDS.get(line, line)


@lru_cache(maxsize=64)
def zone_named(name: str) -> ZoneInfo:
    """A time zone as the package has it, whatever the machine has."""
    if not name or name.startswith((".", "/")) or ".." in name:
        raise ValueError(name)
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
