"""The connection of a command to the server, and what a command returns, printed."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from roost.cli.common.options import json_option
from roost.cli.common.output import Output, echo_err, print_json
from roost.client import Client, find_config
from roost.client.errors import ApiError

T = TypeVar("T")


def connect() -> Client:
    return Client(*find_config())


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


def wants_json() -> bool:
    """Whether the command was called with --json."""
    return bool(click.get_current_context().params.get("as_json"))


def client_output(command: Callable[..., Output]) -> Callable[..., None]:
    """The same for a command that gets a client of the configured server as `client`."""

    @wraps(command)
    def connected(**given: Any) -> Output:
        with connect() as client:
            return command(client=client, **given)

    return json_output(connected)


def showing_group(command: Callable[..., None], name: str | None = None) -> click.Group:
    """A group that is a command of its own when no subcommand is given."""

    @wraps(command)
    def callback(**given: Any) -> None:
        if click.get_current_context().invoked_subcommand is None:
            command(**given)

    return click.group(name, invoke_without_command=True)(callback)


def listing(name: str, objects: str = "") -> Callable[[Callable[..., None]], click.Group]:
    """A group that lists its `objects` (else `name`) when no subcommand is given; so does its subcommand `list`."""

    def decorate(function: Callable[..., None]) -> click.Group:
        group = showing_group(function, name)
        example = f"Examples:\n  roost {name} list\n  roost {name} list --json"
        help_text = f"List {objects or name}, as `roost {name}` does.\n\n{example}\n\nNext: `roost {name} --help`."
        group.add_command(click.Command("list", callback=function, params=group.params, help=help_text))
        return group

    return decorate


def deletion(
    group: click.Group, verb: str, metavar: str, noun: str, summary: str, *, example: str, done: str, then: str,
    key: click.ParamType[Any] = click.STRING,
) -> None:  # fmt: skip
    """Add a command that deletes one object. `key`: the type of its argument; a pair is PROJECT and NAME."""

    @client_output
    def delete(client: Client, key: str | tuple[str, str]) -> Output:
        parts = {"name": key} if isinstance(key, str) else {"project": key[0], "name": key[1]}
        getattr(client, noun).delete(*parts.values())
        return Output(parts, done.format("/".join(parts.values())))

    help_text = f"{summary}\n\nExamples:\n  roost {group.name} {verb} {example}\n\nNext: {then}"
    argument = click.argument("key", type=key, metavar=metavar)
    group.command(verb, help=help_text)(argument(delete))


def existing(read: Callable[[], T]) -> T | None:
    """What the server has, or None if there is no such object."""
    try:
        return read()
    except ApiError as error:
        if error.status != 404:
            raise
        return None
