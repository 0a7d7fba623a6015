"""What people and programs read: aligned tables, relative times, quantities, JSON."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TextIO, TypeVar

import click

T = TypeVar("T")

COLORS = {
    "succeeded": "green", "running": "green", "ready": "green",
    "failed": "red", "timed_out": "red", "lost": "red", "expired": "red", "rejected": "red",
    "scheduled": "cyan", "queued": "yellow", "stopping": "yellow", "suspect": "yellow", "draining": "yellow",
    "cordoned": "yellow", "cancelled": "bright_black", "drained": "bright_black", "stopped": "bright_black",
    "skipped": "bright_black",
}  # fmt: skip
TIMES = ("TIME", "FINISHED", "SINCE", "NEXT", "LAST")  # columns that say nothing when they are cut
COLUMN_MIN = 8  # a column is not cut below this: an ellipsis behind some letters says nothing


class Output(NamedTuple):
    """What a command prints: with --json the value, otherwise a sentence on stderr or what `show` prints."""

    value: Any
    show: str | Callable[[], object]
    exit_code: int = 0


def listed(
    found: Sequence[T], header: Sequence[str], row: Callable[[T], Sequence[str]], empty: str = "", value: Any = None
) -> Output:
    """Objects of one kind, as a table or JSON; `empty` says what to do if there are none."""

    def show() -> None:
        print_table(header, [row(item) for item in found])
        if empty and not found:
            echo_err(empty)

    return Output(found if value is None else value, show)


def print_json(value: Any) -> None:
    """One document, indented for people when it goes to a terminal, one line otherwise."""
    import msgspec

    encoded = msgspec.json.encode(value)
    click.echo(msgspec.json.format(encoded, indent=2 if sys.stdout.isatty() else 0))


def write_bytes(data: bytes, *, err: bool = False) -> None:
    """Write all of it to stdout or stderr, which may be unbuffered and then takes a part when its reader closes."""
    stream = sys.stderr if err else sys.stdout
    rest = memoryview(data) if stream is not None else b""  # None: it was closed before we began
    while rest:
        rest = rest[stream.buffer.write(rest) :]


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def print_fields(fields: dict[str, str], width: int) -> None:
    """One object, a line for each field that has a value; the values and all their lines begin in column `width`."""
    for name, value in fields.items():
        if value:
            click.echo(f"{name + ':':<{width}}" + printable_lines(value.rstrip()).replace("\n", f"\n{'':{width}}"))


def print_json_line(value: Any) -> None:
    import msgspec

    write_bytes(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, err: bool = False) -> None:
    """Columns as wide as they have to be; on a terminal states in colour, and the widest columns cut to its width."""
    if not rows:
        return
    lines = [[printable(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    room = _terminal_width(sys.stderr if err else sys.stdout)
    if room:
        least = [
            width if cell in TIMES else max(COLUMN_MIN, len(cell)) for cell, width in zip(header, widths, strict=True)
        ]
        widths = _fitted(widths, least, room)
    for number, line in enumerate(lines):
        cells = [_cut(cell, width) for cell, width in zip(line, widths, strict=True)]
        text = _cut("  ".join(map(str.ljust, cells, widths)).rstrip(), room)
        click.echo(click.style(text, bold=True) if number == 0 else _painted(text, cells, widths), err=err)


def echo_err(message: str) -> None:
    click.echo(f"roost: {printable_lines(message)}", err=True)


def printable(text: str) -> str:
    """Text of a submitter or a process, with escapes in place of what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _fitted(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths of columns that fit into the room: the widest is cut first, none below its least."""
    found = [min(width, room) for width in widths]
    gaps = 2 * (len(found) - 1)
    while sum(found) + gaps > room:
        spare = [(width, column) for column, width in enumerate(found) if width > least[column]]
        if not spare:
            break  # more columns than fit: the line is cut
        found[max(spare)[1]] -= 1
    return found


def _cut(text: str, width: int) -> str:
    return text[: width - 1] + "…" if 0 < width < len(text) else text


def _painted(text: str, cells: Sequence[str], widths: Sequence[int]) -> str:
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
    import shutil

    return shutil.get_terminal_size().columns
