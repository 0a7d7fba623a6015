"""Traces that are tables: comma-separated, compressed or not. Errors name the line and the column."""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, NamedTuple

from roost.core.placement.strategies import STRATEGIES
from roost.model.errors import Invalid, TooMuch, Unreadable

VALUE_MAX = 2**40  # 35,000 years in seconds, a million TiB in MiB; products of two stay below 63 bits where they occur
ROWS_MAX = 5_000_000  # twenty times the largest table that is replayed; some GB of memory
FIELD_CHARS_MAX = 4_096  # names and lists of models; a longer one means that this is no table


class Row(NamedTuple):
    """One line of a table; errors name the column of a wrong cell."""

    cells: dict[str, str]
    at: str

    def text(self, column: str, default: str | None = None) -> str:
        """A cell as it is; columns without a default must exist."""
        cell = self.cells.get(column, default)
        if cell is None:
            raise Invalid(self.at, f"there is no column {column}")
        if len(cell) > FIELD_CHARS_MAX:
            raise Invalid(self.at, f"column {column} is longer than {FIELD_CHARS_MAX:,} characters")
        return cell

    def whole(self, column: str, least: int = 0, most: int = VALUE_MAX) -> int:
        return self._number(column, int, "a whole number", least, most, 1)

    def thousandths(self, column: str, least: int = 0, most: int = VALUE_MAX) -> int:
        return self._number(column, lambda cell: round(float(cell) * 1_000), "a number", least, most, 1_000)

    def _number(self, column: str, read: Callable[[str], int], noun: str, least: int, most: int, unit: int) -> int:
        cell = self.text(column)
        try:
            value = read(cell)
        except (ValueError, OverflowError):
            raise Invalid(self.at, f"column {column} is {cell[:40]!r}, not {noun}") from None
        if not least <= value <= most:
            limits = f"{least:,} to {most:,}" if unit == 1 else f"{least / unit:,} to {most / unit:,}"
            raise Invalid(self.at, f"column {column} is {cell[:40]}; it is {limits}")
        return value


def read_table(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    try:
        with open_text(path, newline="") as file:
            yield from _rows(path.name, file, columns)
    except csv.Error as error:
        raise Invalid(path.name, f"not a comma-separated table: {error}") from None


def _rows(name: str, file: IO[str], columns: tuple[str, ...]) -> Iterator[Row]:
    reader = csv.reader(file)
    header = next(reader, [])
    missing = [column for column in columns if column not in header]
    if missing:
        raise Invalid(f"{name}:1", f"there is no column {missing[0]}")
    for cells in reader:
        if not cells:
            continue
        at = f"{name}:{reader.line_num}"
        if len(cells) != len(header):
            raise Invalid(at, f"{len(cells)} columns; the first line has {len(header)}")
        if reader.line_num > ROWS_MAX:
            raise TooMuch(f"more than {ROWS_MAX:,} lines", path=name)
        yield Row(dict(zip(header, cells, strict=True)), at)


@contextmanager
def open_text(path: Path, *, errors: str = "strict", newline: str | None = None) -> Iterator[IO[str]]:
    """A text file, compressed or not. Errors name the file."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            content: IO[bytes] = gzip.GzipFile(fileobj=file) if is_packed else file  # type: ignore[assignment]
            with TextIOWrapper(content, encoding="utf-8", errors=errors, newline=newline) as text:
                yield text
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Unreadable(f"cannot be read: {error}", path=path.name) from None


def check_known(strategy: str, known: Iterable[str]) -> None:
    if strategy not in (*known, *STRATEGIES):
        raise Invalid("strategy", f"there is no {strategy!r:.80} for this trace; known are {', '.join(known)}")
