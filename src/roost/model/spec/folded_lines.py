"""YAML that is not what it looks like: an item or a key that is indented too far is part of the line above it."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from roost.model.errors import Invalid, Unreadable

_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""", re.DOTALL)
_STEP_KEY = re.compile(r"(?:^|\s)run:(?=\s|$)")
SUSPECTS_MAX = 100  # looked at: each is sought in all texts, and a document of a person has a few


def refuse_folded_items(text: str, data: Any) -> None:
    """Refuse a text in which a line looks like an item, and is read as the end of the line before it.

    `- npm install` with `- npm run build` indented below it is one command to YAML. The layout alone may be
    that of a script, whose lines are kept; so a text of the data must have both lines as one.
    """
    suspects = list(islice(_suspects(text), SUSPECTS_MAX))
    texts = "\n".join(_texts(data)) if suspects else ""
    for number, joined in suspects:
        if joined in texts:
            message = f"line {number} looks like an item of a list, but is read as the end of line {number - 1}"
            raise Unreadable(f"{message}; indent both alike, or write the text in quotes", params={"line": number})


def refuse_folded_step(line: str, path: str) -> None:
    """Refuse a step whose text has the key of another one in it: `make` with `run: make test` folded into it.

    Texts in quotes are the author's, and a here-document may hold YAML of its own.
    """
    if "run:" in line and "<<" not in line and _STEP_KEY.search(_QUOTED.sub("''", line)):
        message = "the text has a second `run:` in it; write each step as an item of its own, or put the text in quotes"
        raise Invalid(path, message)


def _suspects(text: str) -> Iterator[tuple[int, str]]:
    """Lines that may be part of the line above, and how the place where they meet would read."""
    above = ""
    for number, line in enumerate(text.splitlines(), start=1):
        item = line.strip()
        if item.startswith("- ") and _indent(line) > _indent(above) and above.strip()[-1:] not in ("", ":"):
            yield number, f"{above.split()[-1]} {item.partition(' #')[0].rstrip()}"
        above = line


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _texts(data: Any) -> Iterator[str]:
    waiting = [data]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
