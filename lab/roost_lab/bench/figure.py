"""A figure: a name, a value, and the bound it is held to. Printed as one JSON line."""

import os
import time
from pathlib import Path
from typing import Any, Self

import msgspec

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One measured figure. `bound` must hold, `goal` is the aim; `better` gives their direction."""

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
    ok = None if bound is None else (value <= bound if better == "lower" else value >= bound)
    return Figure(name, round(value, 4), unit, better, bound, goal, ok, detail)


class Spent:
    """`with Spent(pid) as spent:` measures wall seconds and the CPU seconds of process trees."""

    def __init__(self, *roots: int) -> None:
        self._roots = roots

    def __enter__(self) -> Self:
        self.cpu_s, self.wall_s = -tree_cpu_seconds(*self._roots), -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter()
        self.cpu_s += tree_cpu_seconds(*self._roots)


def tree_cpu_seconds(*roots: int) -> float:
    """CPU seconds used so far by processes and their descendants, including children that were waited for."""
    found, seconds = list(roots), 0.0
    for pid in found:
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found.extend(int(child) for child in (task / "children").read_text().split())
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds += sum(int(field) for field in fields[11:15]) / TICKS_PER_SECOND  # utime, stime, cutime, cstime
    return seconds
