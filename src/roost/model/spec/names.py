"""Names and one-line texts: what they may look like."""

import re

import msgspec

from roost.model.errors import Invalid
from roost.model.limits import NAME_LENGTH_MAX, TEXT_LENGTH_MAX
from roost.model.records.secret import FromSecret

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
_NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")


def check_name(name: str, path: str) -> None:
    """A name of a workload, project, pool or resource: letters, digits, - and _, no dots (those part the index)."""
    _check(name, path, _NAME, "letters, digits, '-' and '_', beginning and ending with a letter or digit")


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


def reported(error: msgspec.ValidationError, path: str, raw: dict[str, object]) -> Invalid:
    """msgspec's sentence and path (`... - at `$.count``) in our form."""
    text, _, where = str(error).partition(" - at `")
    field = where.rstrip("`").removeprefix("key` in `").removeprefix("$").removeprefix(".")
    if field.startswith("env[...]"):
        field = f"env.{_odd_variable(raw)}{field.removeprefix('env[...]')}"
        if text.startswith("Expected `str | object`"):
            text = "a variable is a text, or {secret: NAME}"
        elif text.startswith("Object missing"):
            field, text = f"{field}.secret", "the name of a secret is needed"
    if text.startswith("Object contains unknown field"):
        unknown = text.partition("`")[2].rstrip("`")
        field = f"{field}.{unknown}" if field else unknown
        text = "there is no such field"
    return Invalid(".".join(filter(None, (path, field))) or "$", text[:300])


def _odd_variable(raw: dict[str, object]) -> str:
    env = raw["env"]
    assert isinstance(env, dict), "msgspec has looked into it"
    for name, value in env.items():
        try:
            msgspec.convert({name: value}, dict[str, str | FromSecret])
        except msgspec.ValidationError:
            return f"{name:.60}"
    return "[...]"
