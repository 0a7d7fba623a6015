"""Rendering: the workload of a template with values in place of its placeholders. Pure, and bounded in size and depth.

A text that is exactly one placeholder becomes the typed value. Inside other text a value is put in as text. In a line
for a shell it becomes a quoted variable, and in a rule a literal, so that no value is read as code.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.template import Parameter, Template, Value
from roost.model.spec.reading import did_you_mean
from roost.model.spec.templates.parameters import text_of
from roost.model.spec.templates.placeholders import BRACES, Piece, Placeholder, pieces_of
from roost.model.spec.templates.shell_lines import line_in, shell_line, variable_of

#: Fields in which everything is text: a number becomes one there.
TEXT_FIELDS = ("command", "env", "labels", "each")
QUOTES = "'\""
Keys = tuple[str | int, ...]


class _Absent:
    """In place of an optional parameter without a value: its field or item is left out."""


ABSENT = _Absent()


class Rendered(NamedTuple):
    document: dict[str, Any]
    uses: dict[str, tuple[str, ...]]  # the path of a text -> the parameters in it
    size: int  # characters


def render(template: Template, values: Mapping[str, Value], path: str = "") -> Rendered:
    """The workload with these values, which were checked. `path`: of the workload, for errors."""
    renderer = _Renderer(template.parameters, values)
    document = renderer.mapping(template.workload, (), path)
    if renderer.variables:
        env = document.setdefault("env", {})
        if not isinstance(env, dict):
            raise Invalid(_join(path, "env"), "this is a mapping")
        for name, value in renderer.variables.items():
            variable = variable_of(name)
            if variable in env:
                raise Invalid(_join(path, f"env.{variable}"), f"a line needs this variable for {_shown(name)}")
            env[variable] = value
            renderer.uses[f"env.{variable}"] = (name,)
    return Rendered(document, renderer.uses, renderer.size)


class _Renderer:
    def __init__(self, parameters: Mapping[str, Parameter], values: Mapping[str, Value]) -> None:
        self.uses: dict[str, tuple[str, ...]] = {}
        self.variables: dict[str, Any] = {}  # by parameter: what its variable holds
        self.size = 0
        self._parameters, self._values = parameters, values

    def mapping(self, fields: dict[Any, Any], keys: Keys, path: str) -> dict[str, Any]:
        if len(keys) > limits.TEMPLATE_DEPTH_MAX:
            raise Invalid(path, f"this is nested deeper than {limits.TEMPLATE_DEPTH_MAX} levels")
        done: dict[str, Any] = {}
        for key, value in fields.items():
            if isinstance(key, str) and BRACES in key:
                raise Invalid(path or "$", f"a placeholder cannot be the name of a field: {key!r:.60}")
            self._take(len(str(key)), path)
            found = self._value(value, (*keys, key), _join(path, f"{key!s:.60}"))
            if found is not ABSENT:
                done[key] = found
        return done

    def _value(self, value: Any, keys: Keys, path: str) -> Any:
        if isinstance(value, dict):
            return self.mapping(value, keys, path)
        if isinstance(value, list):
            return self._list(value, keys, path)
        if isinstance(value, str):
            return self._text(value, keys, path)
        self._take(8, path)  # a number, or nothing
        return value

    def _list(self, items: list[Any], keys: Keys, path: str) -> list[Any]:
        """An array in place of an item is put in as items."""
        if len(keys) > limits.TEMPLATE_DEPTH_MAX:
            raise Invalid(path, f"this is nested deeper than {limits.TEMPLATE_DEPTH_MAX} levels")
        texts = all(isinstance(item, str) for item in items)
        line = line_in(items, path) if texts and keys in (("command",), ("health", "command")) else None
        done: list[Any] = []
        for index, item in enumerate(items):
            here, start = f"{path}[{index}]", len(done)
            place = (*keys, start)
            if index == line:
                found: Any = self._line(pieces_of(item, here), place, here)
            else:
                found = self._value(item, place, here)
            if isinstance(found, list) and isinstance(item, str):
                done += found
                names = self.uses[_dotted(place)]
                self.uses |= {_dotted((*keys, number)): names for number in range(start, len(done))}
            elif found is not ABSENT:
                done.append(found)
        return done

    def _text(self, text: str, keys: Keys, path: str) -> Any:
        pieces: list[Piece] = pieces_of(text, path) if BRACES in text else [text]
        names = [piece.name for piece in pieces if isinstance(piece, Placeholder)]
        if not names:
            return self._counted("".join(map(str, pieces)), path)
        self._note(names, keys, path)
        if _is_line(keys):
            return self._line(pieces, keys, path)
        if _is_rule(keys):
            return self._rule(pieces, path)
        if len(pieces) == 1:
            return self._whole(names[0], keys, path)
        for name in names:
            if self._parameters[name].type == "array" or self._parameters[name].secret:
                what = "a secret" if self._parameters[name].secret else "an array"
                raise Invalid(path, f"{what} cannot be part of a text: {_shown(name)} has to stand alone")
        return self._counted(
            "".join(piece if isinstance(piece, str) else self._as_text(piece.name) for piece in pieces), path
        )

    def _whole(self, name: str, keys: Keys, path: str) -> Any:
        """A text that is one placeholder."""
        parameter = self._parameters[name]
        if parameter.secret:
            if len(keys) != 2 or keys[0] != "env":
                raise Invalid(path, f"{_shown(name)} is a secret, which only a variable of `env` can have")
            return {"secret": self._values[name]} if name in self._values else ABSENT
        if name not in self._values:
            return ABSENT
        value = self._values[name]
        if isinstance(value, list):
            self._take(sum(map(len, value)), path)
            return value.copy()
        is_text = (
            keys[0] in TEXT_FIELDS or keys[:2] == ("health", "command") or (keys[0], keys[-1]) == ("steps", "name")
        )
        return self._counted(text_of(value), path) if is_text else value

    def _line(self, pieces: list[Piece], keys: Keys, path: str) -> str:
        names = [piece.name for piece in pieces if isinstance(piece, Placeholder)]
        self._note(names, keys, path)
        for name in names:
            parameter = self._parameters[name]
            if parameter.type == "array":
                raise Invalid(path, f"{_shown(name)} is an array, which only a `command` that is a list can have")
            if not parameter.secret:
                self.variables[name] = self._as_text(name)
            elif keys[0] == "health":
                raise Invalid(path, f"{_shown(name)} is a secret, and health checks get none")
            else:
                self.variables[name] = {"secret": self._values[name]} if name in self._values else ""
        return self._counted(shell_line(pieces, path), path)

    def _rule(self, pieces: list[Piece], path: str) -> str:
        """Values are literals of the rule language: texts in quotes."""
        literal = "".join(piece for piece in pieces if isinstance(piece, str))
        if "\\" in literal or "//" in literal or any(3 * quote in literal for quote in QUOTES):
            raise Invalid(path, "a rule with placeholders cannot have backslashes, // or triple quotes")
        done, quote = "", ""
        for piece in pieces:
            if isinstance(piece, str):
                for mark in piece:
                    quote = (mark if mark in QUOTES else "") if not quote else "" if mark == quote else quote
                done += piece
                continue
            if quote:
                raise Invalid(
                    path, f"{_shown(piece.name)} stands in quotes; write it without: it is quoted when put in"
                )
            parameter = self._parameters[piece.name]
            if parameter.secret:
                raise Invalid(path, f"{_shown(piece.name)} is a secret, which only a variable of `env` can have")
            if not parameter.is_needed and parameter.default is msgspec.UNSET:
                raise Invalid(path, f"{_shown(piece.name)} may have no value, and a rule needs one; give it a default")
            done += msgspec.json.encode(self._values[piece.name]).decode()
        return self._counted(done, path)

    def _note(self, names: list[str], keys: Keys, path: str) -> None:
        for name in names:
            if name not in self._parameters:
                known = ", ".join(list(self._parameters)[:20]) or "none"
                guess = did_you_mean(name, self._parameters) or f"; there are {known}"
                raise Invalid(path, f"there is no parameter {_shown(name)}{guess}")
        self.uses[_dotted(keys)] = tuple(dict.fromkeys(names))

    def _as_text(self, name: str) -> str:
        return text_of(self._values[name]) if name in self._values else ""

    def _counted(self, text: str, path: str) -> str:
        self._take(len(text), path)
        return text

    def _take(self, size: int, path: str) -> None:
        self.size += size
        if self.size > limits.DOCUMENT_BYTES_MAX:
            raise Invalid(path, f"with these values it has more than {limits.DOCUMENT_BYTES_MAX:,} characters")


def _is_line(keys: Keys) -> bool:
    """Whether a text here is a line for a shell."""
    if keys in (("command",), ("health", "command")):
        return True
    return keys[0] == "steps" and (len(keys) == 2 or (len(keys) == 3 and keys[2] == "run"))


def _is_rule(keys: Keys) -> bool:
    return keys[:2] == ("placement", "require") or (keys[:2] == ("placement", "prefer") and keys[-1] == "that")


def _dotted(keys: Keys) -> str:
    """A path as errors have it: steps[0].run"""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def _shown(name: str) -> str:
    return f"{{{{{name}}}}}"


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field
