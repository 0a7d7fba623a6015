"""What commands share: the connection to the server, and the options that many of them have."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roost.model.limits import DEFAULT_PROJECT

if TYPE_CHECKING:
    from roost.client import Client

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def connect() -> "Client":
    """A client for the server that is configured. Raises NotConfigured."""
    from roost.client import Client  # noqa: PLC0415  (`--help` needs no connection)
    from roost.client.config import find_config  # noqa: PLC0415

    config = find_config()
    return Client(config.url, config.token)


def json_option(command: Decorated) -> Decorated:
    """--json: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def project_option(command: Decorated) -> Decorated:
    """--project: whose workloads are meant."""
    return click.option(
        "-p", "--project", envvar="ROOST_PROJECT", default=DEFAULT_PROJECT, show_default=True, show_envvar=True,
        help="Whose workloads are meant.",
    )(command)  # fmt: skip


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Options like K=V, as they are written."""
    for value in values:
        name, separator, _ = value.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"{value!r} is not like NAME=VALUE", ctx, param)
    return values
