"""What commands share: the connection to the server, and the options that many of them have."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roost.model.errors import Invalid
from roost.model.limits import DEFAULT_PROJECT
from roost.model.spec.units import byte_count, duration_ms

if TYPE_CHECKING:
    from roost.client import Client

NOT_FOUND = 404
T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def connect() -> "Client":
    """A client for the server that is configured. Raises NotConfigured."""
    from roost.client import Client
    from roost.client.config import find_config

    config = find_config()
    return Client(*config)


def json_option(command: Decorated) -> Decorated:
    """--json: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def project_option(command: Decorated) -> Decorated:
    """--project: whose workloads are meant."""
    return click.option(
        "-p", "--project", envvar="ROOST_PROJECT", default=DEFAULT_PROJECT, show_default=True, show_envvar=True,
        help="Project of the workloads.",
    )(command)  # fmt: skip


def listing(name: str) -> Callable[[Callable[..., None]], click.Group]:
    """A group that lists its objects when no subcommand is given; its subcommand `list` does the same."""

    def decorate(function: Callable[..., None]) -> click.Group:
        @wraps(function)
        def callback(**given: Any) -> None:
            if click.get_current_context().invoked_subcommand is None:
                function(**given)

        group = click.group(name, invoke_without_command=True)(callback)
        example = f"Examples:\n  roost {name} list\n  roost {name} list --json"
        help_text = f"List {name}, as `roost {name}` does.\n\n{example}\n\nNext: `roost {name} --help`."
        group.add_command(click.Command("list", callback=function, params=group.params, help=help_text))
        return group

    return decorate


def existing(read: Callable[[], T]) -> T | None:
    """What the server has, or None if there is no such object."""
    from roost.client.errors import ApiError

    try:
        return read()
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


class UnitType(click.ParamType[int]):
    """A quantity with a unit, as a number: of milliseconds or bytes."""

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


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Options like K=V, as they are written."""
    for value in values:
        name, separator, _ = value.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"{value!r} is not like NAME=VALUE", ctx, param)
    return values
