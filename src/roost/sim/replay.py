"""What a replay of a trace yields, whatever the trace: figures by name, and series to look at."""

from typing import Any

import msgspec

Point = tuple[float, float]


class Series(msgspec.Struct, frozen=True):
    """One line of a plot."""

    name: str  # the plot it belongs to: utilisation, wait, fragmentation, nodes
    unit: str
    points: list[Point]  # x is told by `along`
    along: str = "hours"


class Replay(msgspec.Struct, frozen=True):
    """One trace under one strategy or queue order: means over seeds where chance takes part."""

    trace: str
    strategy: str
    metrics: dict[str, float]
    spread: dict[str, float] = {}  # standard deviation over seeds, by the metric's name
    series: tuple[Series, ...] = ()
    details: dict[str, Any] = {}  # what is no figure: yes or no, words, and lists of rows that have the same names
