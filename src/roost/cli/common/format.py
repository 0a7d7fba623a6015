"""Times and quantities as people read them."""

import time

from roost.model.spec.units import show_bytes, show_cpu, show_duration


def current_ms() -> int:
    return int(time.time() * 1_000)


def ago(at_ms: int | None, now_ms: int | None = None) -> str:
    """`3s ago`, `2h5m ago`; a dash for what has not happened."""
    if not at_ms:
        return "-"
    passed = max(0, (now_ms or current_ms()) - at_ms)
    return "now" if passed < 1_000 else f"{show_duration(passed // 1_000 * 1_000)} ago"


def from_now(at_ms: int) -> str:
    return show_duration(max(0, at_ms - current_ms()) // 1_000 * 1_000)


def took(start_ms: int | None, end_ms: int | None, now_ms: int | None = None) -> str:
    if not start_ms:
        return "-"
    passed = max(0, (end_ms or now_ms or current_ms()) - start_ms)
    return show_duration(passed if passed < 10_000 else passed // 1_000 * 1_000)


def clock(at_ms: int) -> str:
    """The time of day, with milliseconds: lines of one story lie close together."""
    return day_and_time(at_ms)[11:]


def moment(at_ms: int) -> str:
    """The local day and time, in seconds."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1_000))


def day_and_minute(at_ms: int) -> str:
    return moment(at_ms)[:-3]


def day_and_time(at_ms: int) -> str:
    """The local day and time, in milliseconds."""
    return f"{moment(at_ms)}.{at_ms % 1_000:03d}"


def amount(name: str, value: int) -> str:
    """A resource as people write it: cpu_milli 1500 is 1.5, memory 4294967296 is 4GiB."""
    if name.endswith("_milli"):
        return show_cpu(value)
    if name in ("memory", "disk"):
        return show_bytes(value)
    return str(value)


def plain(name: str) -> str:
    """A resource without its unit: cpu_milli is cpu."""
    return name.removesuffix("_milli")
