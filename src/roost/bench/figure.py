"""A figure: a name, a value, and the bound it is held to. Printed as one JSON line."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Missing(RuntimeError):
    """Something that is measured is not installed here; says what to do."""


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measured figure. `bound` is what must hold, `goal` what we aim at; both are read with `better`."""

    figure: str
    value: float
    unit: str
    better: str = "lower"
    bound: float | None = None
    goal: float | None = None
    ok: bool | None = None
    detail: dict[str, Any] = {}


def figure(name: str, value: float, unit: str, *, better: str = "lower", bound: float | None = None,
           goal: float | None = None, **detail: Any) -> Figure:  # fmt: skip
    """A figure with its verdict."""
    ok = None if bound is None else (value <= bound if better == "lower" else value >= bound)
    return Figure(name, round(value, 4), unit, better, bound, goal, ok, detail)


class Bench(msgspec.Struct, frozen=True):
    """A benchmark: its name, what it shows, and the function that measures."""

    name: str
    shows: str
    measure: Callable[[], list[Figure]]


def tree_cpu_seconds(*roots: int) -> float:
    """CPU seconds used so far by processes and everything below them, including children that have been waited for."""
    return sum(_process_seconds(pid) for pid in _descendants(roots))


def _process_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS_PER_SECOND  # utime, stime, cutime, cstime


def _descendants(roots: tuple[int, ...]) -> list[int]:
    found = list(roots)
    for pid in found:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found.extend(int(child) for child in (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
