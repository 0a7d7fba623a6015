"""Quantities at the edge (`500m`, `4GiB`, `1h30m`) and integers inside (milli-cores, bytes, milliseconds)."""

import re
from datetime import datetime
from fractions import Fraction
from math import isfinite

from roost.model.errors import Invalid
from roost.model.limits import BYTES_MAX, COUNTABLE_MAX, CPU_MILLI_MAX, DURATION_MS_MAX

Quantity = int | float | str

BYTE_UNITS = {
    "": 1, "B": 1,
    "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "KB": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50,
}  # fmt: skip
TIME_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]{0,3})")
_TIME_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(ms|s|m|h|d|w)")


def cpu_milli(value: Quantity, path: str) -> int:
    """`2`, `0.5` and `500m` as milli-cores."""
    return _scaled(value, path, {"": 1_000, "m": 1}, CPU_MILLI_MAX, "cpu is a number of cores like 2, 0.5 or 500m")


def gpu_milli(value: Quantity, path: str) -> int:
    """`2`, `0.5` and `500m` as thousandths of devices."""
    return _scaled(value, path, {"": 1_000, "m": 1}, CPU_MILLI_MAX, "gpu is a number of devices like 2 or 0.5")


def byte_count(value: Quantity, path: str) -> int:
    """`4GiB`, `4G` and plain numbers as bytes."""
    return _scaled(value, path, BYTE_UNITS, BYTES_MAX, "a size is a number of bytes, or like 512MiB, 4GiB, 10G")


def countable(value: Quantity, path: str) -> int:
    return _scaled(value, path, {"": 1}, COUNTABLE_MAX, "a whole number is needed here")


def duration_ms(value: Quantity, path: str) -> int:
    """`10m`, `1h30m`, `500ms`; a plain number is seconds."""
    message = "a duration is like 30s, 10m, 1h30m or 7d"
    if isinstance(value, str) and not value.strip().replace(".", "", 1).isdigit():
        text = value.strip()
        parts = _TIME_PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise Invalid(path, f"{message}, not {_shown(value)}")
        total = sum(Fraction(number) * TIME_UNITS[unit] for number, unit in parts)
        return _whole(total, path, DURATION_MS_MAX, message)
    return _scaled(value, path, {"": 1_000}, DURATION_MS_MAX, message)


def moment_ms(value: Quantity, path: str, now_ms: int) -> int:
    """A moment with a time zone (`2030-01-31T18:00Z`), or a duration from now, as milliseconds since 1970."""
    return read_moment(value, path) if is_moment(value) else now_ms + duration_ms(value, path)


def past_ms(value: Quantity, path: str, now_ms: int) -> int:
    """A moment with a time zone, or a duration ago, as milliseconds since 1970."""
    return read_moment(value, path) if is_moment(value) else now_ms - duration_ms(value, path)


def read_moment(value: Quantity, path: str) -> int:
    try:
        moment = datetime.fromisoformat(str(value).strip())
    except ValueError:
        message = "a moment is like 2030-01-31T18:00Z, a duration from now like 30m or 2h"
        raise Invalid(path, f"{message}, not {_shown(value)}") from None
    if moment.tzinfo is None:
        raise Invalid(path, f"{_shown(value)} needs a time zone, such as Z or +01:00")
    return max(0, round(moment.timestamp() * 1_000))  # .438 is a little less than .438 in a float


def is_moment(value: Quantity) -> bool:
    """Whether this is meant to be a moment and not a duration: it has what only a date or a time of day has."""
    return isinstance(value, str) and any(mark in value for mark in ("T", "-", ":"))


def show_cpu(milli: int) -> str:
    """Milli-cores as people write them: `2`, `0.5`, `1.25`."""
    return _trimmed(milli, 1_000)


def show_bytes(count: int) -> str:
    """Bytes in the largest binary unit that keeps the number readable."""
    size, unit = 1, "B"
    for name, factor in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40), ("PiB", 2**50)):
        if count >= factor:
            size, unit = factor, name
    if unit == "B":
        return str(count)
    return _trimmed(count * 100 // size, 100) + unit


def show_size(count: int) -> str:
    """As `show_bytes`, but a few bytes also have their unit: `4B`."""
    return show_bytes(count) if count >= 1_024 else f"{count}B"


def show_duration(ms: int) -> str:
    """Milliseconds as `1d2h`, `10m`, `1.5s`, at most two units."""
    if ms < 1_000:
        return f"{ms}ms"
    if ms < 60_000:
        return _trimmed(ms, 1_000) + "s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        amount, ms = divmod(ms, TIME_UNITS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts[:2])


def _scaled(value: Quantity, path: str, units: dict[str, int], most: int, message: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return _whole(Fraction(value) * units[""], path, most, message)
    if isinstance(value, float) and isfinite(value):
        return _whole(Fraction(str(value)) * units[""], path, most, message)
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match.group(2) not in units:
        raise Invalid(path, f"{message}, not {_shown(value)}")
    return _whole(Fraction(match.group(1)) * units[match.group(2)], path, most, message)


def _whole(amount: Fraction | int, path: str, most: int, message: str) -> int:
    if amount < 0:
        raise Invalid(path, f"{message}; it cannot be negative")
    if amount > most:
        raise Invalid(path, f"{message}; this is more than Roost can count")
    if amount != int(amount):
        raise Invalid(path, f"{message}; this is finer than Roost can count")
    return int(amount)


def _trimmed(amount: int, one: int) -> str:
    whole, rest = divmod(amount, one)
    if not rest:
        return str(whole)
    return f"{whole}.{str(one + rest)[1:].rstrip('0')}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
