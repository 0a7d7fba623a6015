"""Placeholders: {{NAME}} in a text of a template. `{{{{` stands for two braces."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from roost.model.errors import Invalid
from roost.model.limits import PARAMETER_NAME_MAX

BRACES = "{{"
_BRACES = re.compile(r"\{\{(?:(?P<literal>\{\{)|[ \t]*(?P<name>[A-Za-z][A-Za-z0-9_]*)[ \t]*\}\})?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class Placeholder(NamedTuple):
    name: str


Piece = str | Placeholder


def pieces_of(text: str, path: str) -> list[Piece]:
    """The literal parts of a text and its placeholders, in order."""
    pieces: list[Piece] = []
    end = 0
    for found in _BRACES.finditer(text):
        pieces.append(text[end : found.start()])
        end = found.end()
        if found["literal"]:
            pieces.append(BRACES)
        elif found["name"]:
            pieces.append(Placeholder(found["name"]))
        else:
            message = f"{text[found.start() :]!r:.40} is no placeholder like {{{{NAME}}}}"
            raise Invalid(path, f"{message}; write {{{{{{{{ where two braces are meant")
    pieces.append(text[end:])
    return [piece for piece in _joined(pieces) if piece]


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    literal = ""
    for piece in pieces:
        if isinstance(piece, str):
            literal += piece
            continue
        yield literal
        yield piece
        literal = ""
    yield literal


def check_parameter_name(name: str, path: str) -> None:
    if len(name) > PARAMETER_NAME_MAX or _NAME.fullmatch(name) is None:
        message = f"the name of a parameter is up to {PARAMETER_NAME_MAX} letters, digits and '_', and begins with"
        raise Invalid(path, f"{message} a letter; not {name!r:.60}")
