"""Quantities: what people write becomes integers, exactly or not at all."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.model.errors import Invalid
from roost.model.limits import BYTES_MAX, COUNTABLE_MAX, CPU_MILLI_MAX, DURATION_MS_MAX
from roost.model.spec.units import (
    BYTE_UNITS,
    TIME_UNITS,
    Quantity,
    byte_count,
    countable,
    cpu_milli,
    duration_ms,
    gpu_milli,
    moment_ms,
    show_bytes,
    show_cpu,
    show_duration,
    show_size,
)

READERS: dict[Callable[[Quantity, str], int], int] = {
    cpu_milli: CPU_MILLI_MAX,
    byte_count: BYTES_MAX,
    countable: COUNTABLE_MAX,
    duration_ms: DURATION_MS_MAX,
}
EACH = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)


@pytest.mark.parametrize(
    ("read", "written", "inside"),
    [
        (cpu_milli, 2, 2_000),
        (cpu_milli, 0.5, 500),
        (cpu_milli, "500m", 500),
        (cpu_milli, "1.25", 1_250),
        (cpu_milli, 0.1, 100),
        (byte_count, 1_024, 1_024),
        (byte_count, "4GiB", 4 << 30),
        (byte_count, "4Gi", 4 << 30),
        (byte_count, "4G", 4 * 10**9),
        (byte_count, "1.5 GiB", 3 << 29),
        (byte_count, "512kB", 512_000),
        (countable, "3", 3),
        (duration_ms, 90, 90_000),
        (duration_ms, "90", 90_000),
        (duration_ms, 0.5, 500),
        (duration_ms, "500ms", 500),
        (duration_ms, "1h30m", 5_400_000),
        (duration_ms, "7d", 604_800_000),
        (duration_ms, "1.5h", 5_400_000),
    ],
)
def test_what_people_write(read: Callable[[Quantity, str], int], written: Quantity, inside: int) -> None:
    assert read(written, "here") == inside


@pytest.mark.parametrize(
    ("read", "written", "message"),
    [
        (cpu_milli, "two", "cpu is a number of cores like 2, 0.5 or 500m, not 'two'"),
        (gpu_milli, "two", "gpu is a number of devices like 2 or 0.5, not 'two'"),
        (cpu_milli, -1, "cannot be negative"),
        (cpu_milli, 0.0001, "finer than Roost can count"),
        pytest.param(cpu_milli, 10**400, "more than Roost can count", id="cpu_milli-absurd"),
        (cpu_milli, True, "not True"),
        (cpu_milli, float("nan"), "not nan"),
        (cpu_milli, float("inf"), "not inf"),
        (byte_count, "4 apples", "not '4 apples'"),
        (byte_count, 1e300, "more than Roost can count"),
        (byte_count, "-1", "not '-1'"),
        (countable, 0.5, "finer than Roost can count"),
        (countable, "1k", "a whole number is needed here, not '1k'"),
        (duration_ms, "1h 30", "a duration is like 30s, 10m, 1h30m or 7d, not '1h 30'"),
        (duration_ms, "", "not ''"),
        (duration_ms, "11y", "not '11y'"),
        (duration_ms, "9" * 15 + "w", "more than Roost can count"),
        (duration_ms, -1, "cannot be negative"),
    ],
)
def test_what_is_refused_and_how(read: Callable[[Quantity, str], int], written: Quantity, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        read(written, "resources.cpu")
    assert message in refused.value.message
    assert refused.value.path == "resources.cpu"
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(("letter", "power"), [("k", 1), ("K", 1), ("M", 2), ("G", 3), ("T", 4), ("P", 5)])
def test_every_unit_of_size(letter: str, power: int) -> None:
    for suffix in ("", "B"):
        assert byte_count(f"3{letter}{suffix}", "") == 3 * 1_000**power
        if letter != "k":
            assert byte_count(f"3{letter}i{suffix}", "") == 3 * 1_024**power
    assert byte_count("3B", "") == 3


@pytest.mark.parametrize(("unit", "ms"), [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)])
def test_every_unit_of_time(unit: str, ms: int) -> None:
    assert duration_ms(f"3{unit}", "") == 3 * ms
    assert duration_ms("3w", "") == 3 * 7 * 86_400_000


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (1_023, "1023"), (1_024, "1KiB"), (1_536, "1.5KiB"), ((1 << 20) - 1, "1023.99KiB"), (5 << 50, "5PiB")],
)
def test_sizes_are_shown_in_the_largest_unit_that_keeps_them_readable(count: int, shown: str) -> None:
    assert show_bytes(count) == shown


def test_a_few_bytes_have_their_unit_where_sizes_are_shown() -> None:
    assert [show_size(count) for count in (0, 4, 1_024)] == ["0B", "4B", "1KiB"]


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(0, "0ms"), (999, "999ms"), (1_500, "1.5s"), (60_000, "1m"), (5_400_000, "1h30m"), (93_784_000, "1d2h")],
)
def test_durations_are_shown_as_people_say_them(ms: int, shown: str) -> None:
    assert show_duration(ms) == shown


@pytest.mark.parametrize(
    ("read", "unit"),
    [(cpu_milli, "m"), (byte_count, "B"), (countable, ""), (duration_ms, "ms")],
)
def test_there_is_a_most_and_one_more_is_refused(read: Callable[[Quantity, str], int], unit: str) -> None:
    most = READERS[read]
    assert read(f"{most}{unit}", "") == most
    with pytest.raises(Invalid, match="more than Roost can count"):
        read(f"{most + 1}{unit}", "")


@EACH
@given(written=st.one_of(st.text(max_size=20), st.integers(), st.floats(), st.booleans()))
def test_whatever_is_written_becomes_an_integer_within_bounds_or_is_refused(
    read: Callable[[Quantity, str], int], written: Quantity
) -> None:
    try:
        inside = read(written, "here")
    except Invalid:
        return
    assert type(inside) is int
    assert 0 <= inside <= READERS[read]


@EACH
@given(exponent=st.integers(0, 6_000), sign=st.sampled_from([1, -1]))
def test_absurd_numbers_are_refused_not_a_crash(read: Callable[[Quantity, str], int], exponent: int, sign: int) -> None:
    try:
        assert 0 <= read(sign * 10**exponent, "here") <= READERS[read]
    except Invalid:
        assert sign < 0 or 10**exponent * 1_000 > READERS[read]


@given(st.integers(0, CPU_MILLI_MAX))
def test_cpu_is_shown_and_read_back_exactly(milli: int) -> None:
    assert cpu_milli(show_cpu(milli), "") == milli
    assert cpu_milli(f"{milli}m", "") == milli


@given(st.integers(0, BYTES_MAX))
def test_bytes_are_shown_within_a_hundredth_of_their_unit_and_never_more_than_there_are(count: int) -> None:
    shown = show_bytes(count)
    number, unit = shown.rstrip("KMGTPiB"), shown.lstrip("0123456789.")
    assert Fraction(number) < 1_024 or unit == "PiB"
    assert 0 <= count - Fraction(number) * BYTE_UNITS[unit] < Fraction(BYTE_UNITS[unit], 100) or unit == ""


@given(st.integers(0, DURATION_MS_MAX))
def test_durations_are_shown_in_two_units_at_most_and_read_back_that_exactly(ms: int) -> None:
    shown = show_duration(ms)
    rest = ms - duration_ms(shown, "")
    units = [unit for unit in ("ms", "s", "m", "h", "d") if shown.endswith(unit)]
    assert 0 <= rest < TIME_UNITS[units[0]]
    if ms < 60_000:
        assert rest == 0


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from(sorted(TIME_UNITS))), min_size=1, max_size=4))
def test_parts_of_a_duration_add_up(parts: list[tuple[int, str]]) -> None:
    written = "".join(f"{number}{unit}" for number, unit in parts)
    assert duration_ms(written, "") == sum(number * TIME_UNITS[unit] for number, unit in parts)


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("2h", 7_201_000),
        (5, 6_000),
        ("1970-01-01T00:01Z", 60_000),
        ("1970-01-01T02:00+01:00", 3_600_000),
        ("1970-01-01 00:00:00.5Z", 500),
        ("1960-01-01T00:00Z", 0),
    ],
)
def test_a_moment_or_a_duration_from_now(written: Quantity, ms: int) -> None:
    assert moment_ms(written, "start", 1_000) == ms


@pytest.mark.parametrize(
    "written", ["soon", "2030-01-31", "2030-01-31T18:00", "2030-13-31T18:00Z", "-5s", -5, "18:00", True]
)
def test_what_is_neither_is_refused_with_words(written: Quantity) -> None:
    with pytest.raises(Invalid) as refused:
        moment_ms(written, "start", 1_000)
    assert refused.value.path == "start"
