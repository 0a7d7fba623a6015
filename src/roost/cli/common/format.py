"""Times and quantities as people read them."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import click

from roost.model.spec.units import show_bytes, show_cpu, show_duration

T = TypeVar("T")

AS_OF = "roost.as_of_ms"  # in the context of a command with --at: the moment whose state is shown


def current_ms() -> int:
    """Now, or the moment that a command shows: ages of a past state are those of then."""
    context = click.get_current_context(silent=True)
    return context.meta[AS_OF] if context is not None and AS_OF in context.meta else int(time.time() * 1_000)


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


def clock_since(first_ms: int) -> Callable[[int], str]:
    """How to show times from this one on: the time of day for what began today, else with its day."""
    return clock if moment(first_ms)[:10] == moment(current_ms())[:10] else day_and_time


def amount(name: str, value: int) -> str:
    """A resource as people write it: cpu_milli 1500 is 1.5, memory 4294967296 is 4GiB."""
    if name.endswith("_milli"):
        return show_cpu(value)
    if name in ("memory", "disk", "file_bytes"):
        return show_bytes(value)
    return str(value)


def ordered(resources: Mapping[str, T]) -> list[tuple[str, T]]:
    """Resources in one order everywhere: cpu, memory, disk, GPUs, then others by name."""
    first = ("cpu_milli", "memory", "disk", "gpu", "gpu_milli")
    return sorted(resources.items(), key=lambda item: (first.index(item[0]) if item[0] in first else 9, item[0]))


def plain(name: str) -> str:
    """A resource without its unit: cpu_milli is cpu."""
    return name.removesuffix("_milli")
