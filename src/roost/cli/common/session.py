"""What commands share: the connection to the server, and the options that many of them have."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roost.cli.common.output import Output, echo_err, print_json
from roost.model.errors import Invalid
from roost.model.limits import DEFAULT_PROJECT
from roost.model.spec.units import byte_count, duration_ms

if TYPE_CHECKING:
    from roost.client import Client

NOT_FOUND = 404
T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def connect() -> "Client":
    from roost.client import Client
    from roost.client.config import find_config

    return Client(*find_config())


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
project_option = click.option(
    "-p", "--project", envvar="ROOST_PROJECT", default=DEFAULT_PROJECT, show_default=True, show_envvar=True,
    help="Project of the workloads.",
)  # fmt: skip
only_project_option = click.option("-p", "--project", default="", help="Only of this project.")


def json_output(command: Callable[..., Output]) -> Callable[..., None]:
    """Adds --json to a command and prints what it returns; its exit code is that of the output."""

    @json_option
    @wraps(command)
    def printed(as_json: bool, **given: Any) -> None:
        value, show, exit_code = command(**given)
        if as_json:
            print_json(value)
        elif isinstance(show, str):
            echo_err(show)
        else:
            show()
        click.get_current_context().exit(exit_code)

    return printed


def client_output(command: Callable[..., Output]) -> Callable[..., None]:
    """The same for a command that gets a client of the configured server as `client`."""

    @wraps(command)
    def connected(**given: Any) -> Output:
        with connect() as client:
            return command(client=client, **given)

    return json_output(connected)


def limit_option(default: int, most: int) -> Callable[[Decorated], Decorated]:
    return click.option(
        "--limit", type=click.IntRange(1, most), default=default, show_default=True, help="How many at most."
    )


def showing_group(command: Callable[..., None], name: str | None = None) -> click.Group:
    """A group that is a command of its own when no subcommand is given."""

    @wraps(command)
    def callback(**given: Any) -> None:
        if click.get_current_context().invoked_subcommand is None:
            command(**given)

    return click.group(name, invoke_without_command=True)(callback)


def listing(name: str) -> Callable[[Callable[..., None]], click.Group]:
    """A group that lists its objects when no subcommand is given; its subcommand `list` does the same."""

    def decorate(function: Callable[..., None]) -> click.Group:
        group = showing_group(function, name)
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
