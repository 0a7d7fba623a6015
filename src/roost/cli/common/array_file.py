"""`each: {file: params.csv}`: the values of an array's elements, read here and put in the place of the file's name.

Plain text holds a value on each line, `.csv` names its variables in the first row, `.jsonl` and `.json` hold texts or
mappings. Only the command reads files: what is sent to the server has the values themselves.
"""

import csv
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from roost.cli.common.exit_codes import USAGE, Failure
from roost.model import limits
from roost.model.errors import Invalid
from roost.model.spec.dependencies import values_of

# Values and names have 256 KiB together; with names and values of a letter each, JSON takes four times as much again.
BYTES_MAX = 8 * limits.EACH_BYTES_MAX

Value = str | dict[str, str]
_ELEMENT = re.compile(r"each\[(\d+)\]")
_BYTE = re.compile(r" \(byte (\d+)\)$")
_GOT = re.compile(r"got `(\w+)`")
_INSIDE = re.compile(r" - at `\$.")


ArrayValue = tuple[str, Value]  # its place in the file, and the value


class _Wrong(Exception):
    """An error in a file and its place; an empty place is the whole file."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}" if where else message)


def with_values(document: Any, where: str, directory: Path, field: str = "each") -> Any:
    """A document whose `each` names a file, with the values in it; any other document as it is."""
    if not isinstance(document, dict) or not isinstance(document.get("each"), dict):
        return document
    block = document["each"]
    name = block.get("file")
    if set(block) != {"file"} or not isinstance(name, str) or not name or "\0" in name:
        message = "this is a list of texts or mappings, or a file such as {file: params.csv}"
        raise Failure(f"{where}: {field}: {message}", exit_code=USAGE)
    path = directory / name
    try:
        return {**document, "each": read_values(path)}
    except _Wrong as error:
        raise Failure(f"{where}: {field}: {path}: {error}", exit_code=USAGE) from None


def with_action_values(pipeline: Any, where: str, directory: Path) -> Any:
    """The same for all actions of a pipeline."""
    if not isinstance(pipeline, dict) or not isinstance(pipeline.get("actions"), list):
        return pipeline
    actions = [
        with_values(action, where, directory, f"actions[{number}].each")
        for number, action in enumerate(pipeline["actions"])
    ]
    return {**pipeline, "actions": actions}


def read_values(path: Path) -> list[Value]:
    """All values of a file, checked as the server will check them."""
    read = READERS.get(path.suffix.lower(), _plain)
    places: list[str] = []
    values: list[Value] = []
    for where, value in read(_text(path)):
        if len(values) == limits.EACH_MAX:
            raise _Wrong(where, f"an array has at most {limits.EACH_MAX:,} values, and this is one more")
        places.append(where)
        values.append(value)
    if not values:
        raise _Wrong("", "there is no value in it")
    try:
        values_of(values, "each")
    except Invalid as error:
        number = _ELEMENT.match(error.path)
        raise _Wrong(places[int(number[1])] if number else "", error.message) from None
    return values


def _text(path: Path) -> str:
    """The text of a regular file. A pipe or a device is refused, not waited for."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise _Wrong("", "this is not a regular file")
            data = opened.read(BYTES_MAX + 1)
    except OSError as error:
        raise _Wrong("", error.strerror or str(error)) from None
    if len(data) > BYTES_MAX:
        raise _Wrong("", f"a file of values may have {BYTES_MAX:,} bytes; this one has more")
    try:
        return data.decode("utf-8-sig")  # spreadsheets write a mark in front
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Wrong(f"line {line}", f"this is not UTF-8: {error.reason}") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _plain(text: str) -> Iterator[ArrayValue]:
    for number, line in _lines(text):
        yield f"line {number}", line


def _csv(text: str) -> Iterator[ArrayValue]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: list[str] = []
    line = 1
    try:
        for row in rows:
            where, line = f"line {line}", rows.line_num + 1
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if not names:
                names = _checked_names(row, where)
                continue
            if len(row) != len(names):
                raise _Wrong(where, f"{_number(len(row), 'value')} for {_number(len(names), 'name')}")
            yield where, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise _Wrong(f"line {line}", f"this is not CSV: {error}") from None


def _checked_names(row: list[str], where: str) -> list[str]:
    names = [name.strip() for name in row]
    for number, name in enumerate(names, start=1):
        if not name or "=" in name or "\0" in name:
            raise _Wrong(where, f"column {number} has no name that a variable can have: {name!r:.60}")
        if name in names[: number - 1]:
            raise _Wrong(where, f"two columns are called {name:.60}")
    if len(names) > limits.EACH_VARIABLES_MAX:
        raise _Wrong(where, f"a value has at most {limits.EACH_VARIABLES_MAX} variables; these are {len(names)}")
    return names


def _jsonl(text: str) -> Iterator[ArrayValue]:
    for number, line in _lines(text):
        yield f"line {number}", _decoded(line, f"line {number}")


def _json(text: str) -> Iterator[ArrayValue]:
    data = text.encode()
    if not data.strip():
        return
    try:
        raw = _LIST.decode(data)
    except msgspec.ValidationError:
        raise _Wrong("", "this is a list of texts or mappings") from None
    except (msgspec.DecodeError, RecursionError) as error:
        at = _BYTE.search(str(error))
        line = data.count(b"\n", 0, int(at[1]) if at else len(data)) + 1
        raise _Wrong(f"line {line}", f"this is not JSON: {_BYTE.sub('', str(error))}") from None
    for number, element in enumerate(raw):
        yield f"value {number}", _decoded(element, f"value {number}")


def _decoded(data: str | msgspec.Raw, where: str) -> Value:
    try:
        return _VALUE.decode(data)
    except msgspec.ValidationError as error:
        got = _GOT.search(str(error))
        kind = f", not {got[1]}" if got else ""
        what = "the value of a variable is a text in quotes"
        if not _INSIDE.search(str(error)):
            what = "a value is a text or a mapping of variables"
        raise _Wrong(where, f"{what}{kind}") from None
    except msgspec.DecodeError as error:
        raise _Wrong(where, f"this is not JSON: {_BYTE.sub('', str(error))}") from None


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


READERS: dict[str, Callable[[str], Iterator[ArrayValue]]] = {".csv": _csv, ".jsonl": _jsonl, ".json": _json}
_VALUE: msgspec.json.Decoder[Value] = msgspec.json.Decoder(Value)
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
