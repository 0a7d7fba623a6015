"""What people and programs read: aligned tables, relative times, quantities, JSON."""

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

import click

from roost.model.units import show_bytes, show_cpu, show_duration

COLORS = {
    "succeeded": "green", "running": "green", "ready": "green",
    "failed": "red", "timed_out": "red", "lost": "red", "expired": "red", "rejected": "red",
    "queued": "yellow", "stopping": "yellow", "suspect": "yellow", "draining": "yellow",
    "cordoned": "yellow",
    "cancelled": "bright_black", "drained": "bright_black",
}  # fmt: skip


def print_json(value: Any) -> None:
    """One document, indented for people when it goes to a terminal, one line otherwise."""
    import msgspec  # noqa: PLC0415  (whoever has something to print has it imported already)

    encoded = msgspec.json.encode(value)
    click.echo(msgspec.json.format(encoded, indent=2 if sys.stdout.isatty() else 0))


def print_json_line(value: Any) -> None:
    """One event of a stream."""
    import msgspec  # noqa: PLC0415

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, err: bool = False) -> None:
    """Columns as wide as they have to be; states in colour on a terminal; the last column is cut to the width of it."""
    if not rows:
        return
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    room = _terminal_width(sys.stderr if err else sys.stdout)
    for number, line in enumerate((header, *rows)):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        if room and len(text) > room:
            text = text[: room - 1] + "…"
        click.echo(click.style(text, bold=True) if number == 0 else _painted(text, line, widths), err=err)


def say(words: str) -> None:
    """To whoever sits there; never among the output."""
    click.echo(f"roost: {words}", err=True)


def ago(at_ms: int | None, now_ms: int | None = None) -> str:
    """`3s ago`, `2h5m ago`; a dash for what has not happened."""
    if not at_ms:
        return "-"
    passed = max(0, (now_ms or int(time.time() * 1_000)) - at_ms)
    return "now" if passed < 1_000 else f"{show_duration(passed // 1_000 * 1_000)} ago"


def took(start_ms: int | None, end_ms: int | None, now_ms: int | None = None) -> str:
    """How long something took, or has taken so far."""
    if not start_ms:
        return "-"
    passed = max(0, (end_ms or now_ms or int(time.time() * 1_000)) - start_ms)
    return show_duration(passed if passed < 10_000 else passed // 1_000 * 1_000)


def clock(at_ms: int) -> str:
    """The time of day, with milliseconds: lines of one story lie close together."""
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1_000)) + f".{at_ms % 1_000:03d}"


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


def _painted(text: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line with its state in colour; the others are found where they stand, not by what they say."""
    start = 0
    for cell, width in zip(cells, widths, strict=True):
        color, end = COLORS.get(cell), start + len(cell)
        if color and end <= len(text):
            return text[:start] + click.style(text[start:end], fg=color) + text[end:]
        start += width + 2
    return text


def _terminal_width(stream: TextIO) -> int:
    if not stream.isatty():
        return 0
    import shutil  # noqa: PLC0415  (only for a terminal)

    return shutil.get_terminal_size().columns
