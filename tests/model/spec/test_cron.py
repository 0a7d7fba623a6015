"""Lines of cron and time zones: when they are due, and how wrong ones are reported."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.model.errors import Invalid
from roost.model.records.workload import Schedule
from roost.model.spec.cron import check_cron, check_zone, local_time, next_tick, ticks_between, zone_named

FIVE = "a line has five fields (minute hour day month weekday) or is one of @hourly, @daily, @weekly, @monthly, @yearly"
MINUTE = "the minute is a number from 0 to 59, a list, a range, or a star"
DAY = "the day is a number from 1 to 31 that its months have, L for the last one, or a star"
WEEKDAY = "the weekday is a number from 0 (Sunday) to 7, a name as MON, MON#1 for the first, or a star"
NIGHT_IS_LONG = "2026-10-25"  # in Berlin: at 01:00Z the clocks go back from 03:00 to 02:00
NIGHT_IS_SHORT = "2026-03-29"  # at 01:00Z they go on from 02:00 to 03:00


def moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def shown(schedule: Schedule, moments: list[int]) -> list[str]:
    """Times of day by the clocks of the zone; the second time that one comes, with a star."""
    local = [local_time(schedule, moment) for moment in moments]
    return [f"{other_datetime:%H:%M}{'*' * other_datetime.fold}" for other_datetime in local]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", f"{FIVE}: ''"),
        ("* * * *", f"{FIVE}: '* * * *'"),
        ("0 0 0 1 1 *", f"{FIVE}: '0 0 0 1 1 *'"),
        ("@reboot", f"{FIVE}: '@reboot'"),
        ("60 * * * *", f"'60 * * * *' cannot be read: {MINUTE}"),
        ("*/0 * * * *", f"'*/0 * * * *' cannot be read: {MINUTE}"),
        ("9-5 * * * *", f"'9-5 * * * *' cannot be read: {MINUTE}"),
        ("-5 * * * *", f"'-5 * * * *' cannot be read: {MINUTE}"),
        ("noon * * * *", f"'noon * * * *' cannot be read: {MINUTE}"),
        ("0 24 * * *", "'0 24 * * *' cannot be read: the hour is a number from 0 to 23, a list, a range, or a star"),
        ("0 0 0 * *", f"'0 0 0 * *' cannot be read: {DAY}"),
        ("0 0 30 2 *", f"'0 0 30 2 *' cannot be read: {DAY}"),
        ("0 0 31 4,6 *", f"'0 0 31 4,6 *' cannot be read: {DAY}"),
        (
            "0 0 1 13 *",
            "'0 0 1 13 *' cannot be read: the month is a number from 1 to 12, a name such as JAN, or a star",
        ),
        ("0 0 * * 8", f"'0 0 * * 8' cannot be read: {WEEKDAY}"),
        ("0 0 * * MON#6", f"'0 0 * * MON#6' cannot be read: {WEEKDAY}"),
        ("0 0 */31 * MON#2", "'0 0 */31 * MON#2' never comes"),
        ("0 0 * * *\n", "this must be one line of printable text"),
        ("0," * 130 + "0 * * * *", "this may have 256 characters; it has 269"),
    ],
)
def test_a_bad_line_is_reported(line: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_cron(line, "schedule.cron")
    assert (refused.value.path, refused.value.message) == ("schedule.cron", message)


@pytest.mark.parametrize(
    "line", ["@hourly", "@yearly", "*/5 * * * *", "0 0 29 2 *", "0 0 L * *", "0 9 * * MON-FRI", "0 0 * 2 MON#5"]
)
def test_a_good_line_is_taken(line: str) -> None:
    check_cron(line, "schedule.cron")


@given(st.text("0123456789*/,-LW#MONJAN @", max_size=30))
def test_any_line_is_taken_or_reported(line: str) -> None:
    try:
        check_cron(line, "here")
    except Invalid as refused:
        assert refused.path == "here"
    else:
        assert next_tick(Schedule(line, "Europe/Berlin"), moment("2026-01-01T00:00Z")) is not None


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Phobos", "europe/berlin", "Europe", "Europe/", "/UTC", "..", "Europe//Berlin", "../zoneinfo/UTC",
     "tzdata.zi", "__init__.py", "leapseconds", "a\0b", "x" * 5_000, "\N{SNOWMAN}", "Europe\\Berlin"],
)  # fmt: skip
def test_an_unknown_zone_is_reported(zone: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_zone(zone, "schedule.zone")
    assert refused.value.message == f"there is no time zone {zone!r:.60}; they are named like Europe/Berlin"


@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT+5", "America/Argentina/Buenos_Aires", "Asia/Kathmandu", "EST5EDT"])
def test_a_known_zone_is_read_once(zone: str) -> None:
    check_zone(zone, "zone")
    assert zone_named(zone) is zone_named(zone)


def test_the_next_tick_is_after_the_moment_and_by_the_clocks_of_the_zone() -> None:
    schedule = Schedule("30 6 * * MON-FRI", "Asia/Kathmandu")
    friday = moment("2026-11-13T06:30+05:45")
    assert next_tick(schedule, friday - 1) == friday
    assert next_tick(schedule, friday) == moment("2026-11-16T06:30+05:45")


@pytest.mark.parametrize(
    ("cron", "night", "ticks"),
    [
        ("30 2 * * *", NIGHT_IS_LONG, ["02:30"]),
        ("30 2 * * *", NIGHT_IS_SHORT, ["03:00"]),
        ("*/30 * * * *", NIGHT_IS_LONG, ["01:30", "02:00", "02:30", "02:00*", "02:30*", "03:00"]),
        ("*/30 * * * *", NIGHT_IS_SHORT, ["01:30", "03:00", "03:30", "04:00"]),
        ("0,30 2,3 * * *", NIGHT_IS_LONG, ["02:00", "02:30", "03:00"]),
        ("0,30 2,3 * * *", NIGHT_IS_SHORT, ["03:00", "03:30"]),
    ],
)
def test_the_nights_in_which_the_clocks_change(cron: str, night: str, ticks: list[str]) -> None:
    schedule = Schedule(cron, "Europe/Berlin")
    first = moment(f"{night}T01:00Z") - 3_600_001 + (0 if night == NIGHT_IS_SHORT else -3_600_000) + 1_800_000
    until = moment(f"{night}T02:00Z")
    found, more = ticks_between(schedule, first, until, 100)
    assert (shown(schedule, found), more) == (ticks, False)


def test_within_the_hour_that_comes_twice_time_does_not_go_back() -> None:
    schedule = Schedule("30 2 * * *", "Europe/Berlin")
    second = moment(f"{NIGHT_IS_LONG}T01:15Z")  # 02:15 for the second time
    assert next_tick(schedule, second) == moment("2026-10-26T02:30+01:00")


@given(
    st.sampled_from(
        ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */3 * * *", "0 0 29 2 *", "15,45 1-3 * * 0", "@weekly"]
    ),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),
    st.integers(0, 3_000),
    st.integers(0, 20),
)
def test_ticks_between_are_the_last_of_all(cron: str, zone: str, start: datetime, hours: int, most: int) -> None:
    schedule = Schedule(cron, zone)
    after_ms = int(start.replace(tzinfo=UTC).timestamp() * 1000)
    until_ms = after_ms + hours * 60_000
    every = []
    tick = next_tick(schedule, after_ms)
    while tick is not None and tick <= until_ms:
        assert tick > (every[-1] if every else after_ms)
        every.append(tick)
        tick = next_tick(schedule, tick)
    found, more = ticks_between(schedule, after_ms, until_ms, most)
    assert found == (every[-most:] if most else [])
    assert more == (len(every) > most)


def test_years_of_minutes_are_not_counted_one_by_one() -> None:
    schedule, until = Schedule("* * * * *", "Europe/Berlin"), datetime(2026, 1, 1, tzinfo=UTC)
    found, more = ticks_between(schedule, 0, moment(until.isoformat()), 3)
    assert [datetime.fromtimestamp(item / 1000, UTC) for item in found] == [
        until - timedelta(minutes=item) for item in (2, 1, 0)
    ]
    assert more
