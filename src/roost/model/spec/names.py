"""Names and one-line texts: what they may look like."""

import re

from roost.model.errors import Invalid
from roost.model.limits import NAME_LENGTH_MAX, TEXT_LENGTH_MAX

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")


def check_name(name: str, path: str) -> None:
    """A name of a workload, project, pool or resource: letters, digits, - and _, no dots (those part the index)."""
    _check(name, path, _NAME, "letters, digits, '-' and '_', beginning and ending with a letter or digit")


def is_name(text: str) -> bool:
    return len(text) <= NAME_LENGTH_MAX and _NAME.fullmatch(text) is not None


def check_node_name(name: str, path: str) -> None:
    _check(name, path, _NODE_NAME, "letters, digits, '-', '_' and '.', beginning and ending with a letter or digit")


def check_text(text: str, path: str) -> None:
    if len(text) > TEXT_LENGTH_MAX:
        raise Invalid(path, f"this may have {TEXT_LENGTH_MAX} characters; it has {len(text)}")
    if not text.isprintable():
        raise Invalid(path, "this must be one line of printable text")


def _check(name: str, path: str, pattern: re.Pattern[str], message: str) -> None:
    if not name:
        raise Invalid(path, "a name cannot be empty")
    if len(name) > NAME_LENGTH_MAX:
        raise Invalid(path, f"a name may have {NAME_LENGTH_MAX} characters; this one has {len(name)}")
    if pattern.fullmatch(name) is None:
        raise Invalid(path, f"a name is made of {message}, not {name!r}")
