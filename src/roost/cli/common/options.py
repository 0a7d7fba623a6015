"""Options and types of options that many commands have."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from roost.model.errors import Invalid
from roost.model.limits import DEFAULT_PROJECT
from roost.model.spec.units import byte_count, duration_ms

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FILE = click.Path(allow_dash=True)  # a name that shells complete; the command reads it, and says what is wrong
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
project_option = click.option(
    "-p", "--project", envvar="ROOST_PROJECT", default=DEFAULT_PROJECT, show_default=True, show_envvar=True,
    help="Project of the workloads.",
)  # fmt: skip
only_project_option = click.option("-p", "--project", default="", help="Only of this project.")


def limit_option(default: int, most: int) -> Callable[[Decorated], Decorated]:
    return click.option(
        "--limit", type=click.IntRange(1, most), default=default, show_default=True, help="How many at most."
    )


class UnitType(click.ParamType[int]):
    def __init__(self, name: str, parse: Callable[[str, str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else self._parse(value, "")
        except Invalid as error:
            self.fail(error.message, param, ctx)


DURATION = UnitType("DURATION", duration_ms)  # 30s, 10m
SIZE = UnitType("SIZE", byte_count)  # 512MiB, 10G


def pairs_option(*names: str, help: str, metavar: str) -> Callable[[Decorated], Decorated]:
    """A repeatable option NAME=VALUE; the command gets a dictionary."""

    def parse(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        return dict(value.split("=", 1) for value in pairs(ctx, param, values))

    return click.option(*names, multiple=True, callback=parse, metavar=metavar, help=help)


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Options like K=V, as they are written."""
    for value in values:
        name, separator, _ = value.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"{value!r} is not like NAME=VALUE", ctx, param)
    return values
