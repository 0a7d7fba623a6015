"""Replays of traces, and a report of several side by side: one page with its plots, the plots as files, JSON."""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.util import find_spec
from io import BytesIO
from math import ceil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXTRA = "matplotlib"  # what draws; the extra `plots`
BARS_ACROSS = 3  # bar charts beside each other: still readable on a page 1,000 pixels wide
LOG_SCALE_FROM = 50  # largest over smallest; above it the small bars of a linear scale look the same
LINEAR_BELOW = 10_000  # if zero is among such values: the smallest value that is shown apart from it
SIZE = (9.0, 4.0)  # inches of a plot
BAR_HEIGHT = 0.35  # inches per bar
DPI = 110
POINTS = 200  # of a plotted line: about one per pixel column of a small plot
SMALL = 10  # below it two decimal places say too little

STYLE = """body { font: 15px/1.4 system-ui, sans-serif; max-width: 1040px; margin: 2em auto; color: #222 }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { padding: .3em .8em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }"""

Point = tuple[float, float]


class Series(msgspec.Struct, frozen=True):
    name: str  # the plot it belongs to: utilisation, wait, fragmentation, nodes
    unit: str
    points: list[Point]  # `along` says what x is
    along: str = "hours"


class Replay(msgspec.Struct, frozen=True):
    """One trace under one strategy or queue order: means over seeds where chance takes part."""

    trace: str
    strategy: str
    metrics: dict[str, float]
    spread: dict[str, float] = {}  # standard deviation over seeds, by the metric's name
    series: tuple[Series, ...] = ()
    details: dict[str, Any] = {}  # no figures: booleans, text, and lists of rows with equal columns


def can_draw() -> bool:
    return find_spec(EXTRA) is not None


def write_report(folder: Path, title: str, replays: Sequence[Replay]) -> list[Path]:
    """Write report.html, report.json and one PNG per plot; existing files of these names are overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = {"figures": _png(_bars(replays))}
    for name in dict.fromkeys(series.name for replay in replays for series in replay.series):
        plots[name] = _png(_lines(name, replays))
    written = [folder / "report.html", folder / "report.json"]
    written[0].write_text(_page(title, replays, plots), encoding="utf-8")
    written[1].write_bytes(msgspec.json.format(msgspec.json.encode({"title": title, "replays": replays}), indent=1))
    for name, image in plots.items():
        written.append(folder / f"{re.sub(r'[^a-z0-9_]+', '-', name.lower()) or 'plot'}.png")
        written[-1].write_bytes(image)
    return written


def show_figure(value: float) -> str:
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.4f}" if abs(value) < SMALL else f"{value:,.2f}"


def metric_names(replays: Sequence[Replay]) -> list[str]:
    return list(dict.fromkeys(name for replay in replays for name in replay.metrics))


def _lines(name: str, replays: Sequence[Replay]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for strategy, series in _of_name(name, replays):
        axes.plot([x for x, _ in series.points], [y for _, y in series.points], label=strategy, linewidth=1.2)
        axes.set_xlabel(series.along)
        axes.set_ylabel(series.unit)
    _scale(axes, [y for _, series in _of_name(name, replays) for _, y in series.points], "y")
    axes.set_title(_message(name))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _of_name(name: str, replays: Sequence[Replay]) -> Iterator[tuple[str, Series]]:
    return ((replay.strategy, series) for replay in replays for series in replay.series if series.name == name)


def _bars(replays: Sequence[Replay]) -> "Figure":
    from matplotlib.figure import Figure

    names = metric_names(replays)
    if len(replays) > 1:  # only metrics that differ
        names = [name for name in names if len({replay.metrics.get(name) for replay in replays}) > 1]
    down = max(1, ceil(len(names) / BARS_ACROSS))
    height = down * (1.0 + BAR_HEIGHT * len(replays))
    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    charts = figure.subplots(down, BARS_ACROSS, squeeze=False).flatten()
    for axes, name in zip(charts, names, strict=False):
        shown = [replay for replay in replays if name in replay.metrics]
        values = [replay.metrics[name] for replay in shown]
        spread = [replay.spread.get(name, 0.0) for replay in shown]
        axes.barh([replay.strategy for replay in shown], values, xerr=spread if any(spread) else None, height=0.6)
        axes.invert_yaxis()
        _scale(axes, values, "x")
        axes.set_title(_message(name), fontsize="medium")
    for axes in charts[len(names) :]:
        axes.set_axis_off()
    return figure


def _scale(axes: "Axes", values: Sequence[float], which: str) -> None:
    """A log scale if the values are too far apart; otherwise a linear one from zero."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    scale = axes.set_xscale if which == "x" else axes.set_yscale
    if least > 0 and most / least > LOG_SCALE_FROM:
        scale("log")
    elif least == 0 and most > LOG_SCALE_FROM * median(values):
        scale("symlog", linthresh=most / LINEAR_BELOW)
    elif least >= 0:
        (axes.set_xlim if which == "x" else axes.set_ylim)(0, most * 1.08 or 1.0)


def _png(figure: "Figure") -> bytes:
    image = BytesIO()
    figure.savefig(image, format="png", dpi=DPI, metadata={"Software": None})
    return image.getvalue()


def _page(title: str, replays: Sequence[Replay], plots: dict[str, bytes]) -> str:
    names = metric_names(replays)
    figures = _table(("", *names), ([escape(replay.strategy), *_cells(replay, names)] for replay in replays))
    images = "\n".join(
        f'<p><img alt="{escape(_message(name))}" src="data:image/png;base64,{b64encode(image).decode()}"></p>'
        for name, image in plots.items()
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{figures}{''.join(map(_details, replays))}{images}\n</body>\n</html>\n"
    )


def _details(replay: Replay) -> str:
    parts = []
    for name, value in replay.details.items():
        if not isinstance(value, list):
            parts.append(f"<p>{escape(replay.strategy)}: {escape(_message(name))}: {_reported(value)}</p>\n")
        elif value:
            parts.append(_table(value[0], (map(_reported, row.values()) for row in value)))
    return "".join(parts)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{escape(_message(column))}</th>" for column in columns)
    lines = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{lines}\n</table>\n"


def _reported(value: object) -> str:
    if value is None:
        return "-"
    return escape(("yes" if value else "no") if isinstance(value, bool) else str(value))


def _cells(replay: Replay, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        text = show_figure(replay.metrics[name]) if name in replay.metrics else ""
        yield f"{text} ± {show_figure(replay.spread[name])}" if name in replay.spread else text


def _message(name: str) -> str:
    return name.replace("_", " ")
