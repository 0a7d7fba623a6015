"""Templates on the command line: their names, and values for their parameters."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from roost.client import Client
from roost.model.limits import PARAMETER_LENGTH_MAX
from roost.model.records.template import Parameter
from roost.schema.work import TemplateDetail

SHARED = "*"  # in place of a project
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")


class TemplateName(NamedTuple):
    """[PROJECT/]NAME[@VERSION]. Without a project it is empty; version 0: the newest."""

    project: str
    name: str
    version: int = 0


class TemplateType(click.ParamType[TemplateName]):
    name = "template"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> TemplateName:
        project, slash, rest = value.rpartition("/")
        name, at, version = rest.partition("@")
        is_version = version.isascii() and version.isdigit() and 0 < int(version[:9]) and len(version) <= 9
        if not name or "/" in project or (slash and not project) or (at and not is_version):
            self.fail(f"{value!r} is not like NAME, NAME@VERSION or PROJECT/NAME@VERSION", param, ctx)
        return TemplateName(project, name, int(version) if at else 0)


TEMPLATE = TemplateType()


def template_block(
    client: Client, wanted: TemplateName, project: str, given: Sequence[str]
) -> tuple[TemplateDetail, dict[str, Any]]:
    """The template that is asked for, and the `template` of a document with these values (NAME=VALUE)."""
    if wanted.project not in ("", SHARED):
        raise click.UsageError(f"--template is NAME or NAME@VERSION; the project is that of the workload: -p {project}")
    found = client.templates.get(wanted.project or project, wanted.name, wanted.version)
    block: dict[str, Any] = {
        "name": found.name,
        "version": found.version,
        "parameters": values_of(found.parameters, given),
    }
    return found, block | ({"shared": True} if wanted.project else {})


def values_of(parameters: Mapping[str, Parameter], given: Sequence[str]) -> dict[str, Any]:
    """Texts as the types of their parameters. What does not fit stays a text: the server says what is wrong."""
    texts: dict[str, list[str]] = {}
    for pair in given:
        name, _, text = pair.partition("=")
        parameter = parameters.get(name)
        texts.setdefault(name, []).append(_text(name, text, is_secret=parameter is not None and parameter.secret))
    return {name: _value(parameters.get(name), name, found) for name, found in texts.items()}


def _text(name: str, text: str, *, is_secret: bool) -> str:
    """@FILE is the text of a file, without a newline at its end; @@ is an @."""
    if not text.startswith("@"):
        return text
    if text.startswith("@@"):
        return text[1:]
    if is_secret:
        raise click.UsageError(f"-P {name} is the name of a secret; `roost secrets set` sets its value")
    try:
        with Path(text[1:]).open(encoding="utf-8", newline="") as file:
            return file.read(PARAMETER_LENGTH_MAX + 2).removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        message = error.strerror if isinstance(error, OSError) else "this is not UTF-8"
        raise click.UsageError(f"-P {name}: {text[1:]}: {message}; @@ stands for an @") from None


def _value(parameter: Parameter | None, name: str, texts: list[str]) -> Any:
    kind = parameter.type if parameter is not None else "string"
    if kind == "array":
        return texts
    if len(texts) > 1:
        raise click.UsageError(f"-P {name} is given {len(texts)} times; only an array can have several values")
    text = texts[0]
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if kind in ("integer", "number") and _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if kind == "number" and _NUMBER.fullmatch(text) else text
