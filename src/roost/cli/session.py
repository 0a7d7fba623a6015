"""What commands share: the connection to the server, and the options that many of them have."""

from collections.abc import Callable
from pathlib import Path
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
    return Client(*config)


def json_option(command: Decorated) -> Decorated:
    """--json: for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def project_option(command: Decorated) -> Decorated:
    """--project: whose workloads are meant."""
    return click.option(
        "-p", "--project", envvar="ROOST_PROJECT", default=DEFAULT_PROJECT, show_default=True, show_envvar=True,
        help="Whose workloads are meant.",
    )(command)  # fmt: skip


class DurationType(click.ParamType[int]):
    """A duration like 30s or 10m, as milliseconds."""

    name = "DURATION"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        from roost.model.errors import Invalid  # noqa: PLC0415
        from roost.model.units import duration_ms  # noqa: PLC0415  (few commands take one)

        try:
            return duration_ms(value, "")
        except Invalid as error:
            self.fail(error.message, param, ctx)


DURATION = DurationType()


class SizeType(click.ParamType[int]):
    """A size like 512MiB or 10G, as bytes."""

    name = "SIZE"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        from roost.model.errors import Invalid  # noqa: PLC0415
        from roost.model.units import byte_count  # noqa: PLC0415  (few commands take one)

        try:
            return byte_count(value, "")
        except Invalid as error:
            self.fail(error.message, param, ctx)


SIZE = SizeType()


def patience_option(command: Decorated) -> Decorated:
    """--patience: of a server."""
    return click.option(
        "--patience", "patience_ms", type=DURATION, envvar="ROOST_PATIENCE", metavar="DURATION", show_envvar=True,
        help="Who waits longer gets a place kept for it; 0: at once. [default: 30s]",
    )(command)  # fmt: skip


def preempt_margin_option(command: Decorated) -> Decorated:
    """--preempt-margin: of a server."""
    return click.option(
        "--preempt-margin", type=click.IntRange(0, 100), envvar="ROOST_PREEMPT_MARGIN", metavar="N", show_envvar=True,
        help="By how much a priority must be higher to stop what runs; 0: it never does. [default: 20]",
    )(command)  # fmt: skip


def record_options(command: Decorated) -> Decorated:
    """--record and its limits: of a server."""
    for option in (
        click.option(
            "--record-total", type=SIZE, envvar="ROOST_RECORD_TOTAL", metavar="SIZE",
            help="Of all files of history together; the oldest go. [default: 10GiB]",
        ),
        click.option(
            "--record-max", type=SIZE, envvar="ROOST_RECORD_MAX", metavar="SIZE",
            help="Of one file of history; then a new one is begun. [default: 1GiB]",
        ),
        click.option(
            "--record", type=click.Path(file_okay=False, path_type=Path), envvar="ROOST_RECORD", metavar="DIR",
            show_envvar=True, help="Write history here, for `roost sim replay --trace roost`.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def oidc_options(command: Decorated) -> Decorated:
    """--oidc-issuer and what goes with it: of a server."""
    for option in (
        click.option(
            "--oidc-claim", envvar="ROOST_OIDC_CLAIM", metavar="NAME",
            help="What of an identity members are known by. [default: email]",
        ),
        click.option(
            "--oidc-client-id", envvar="ROOST_OIDC_CLIENT_ID", metavar="ID", help="As which the issuer knows Roost.",
        ),
        click.option(
            "--oidc-issuer", envvar="ROOST_OIDC_ISSUER", metavar="URL", show_envvar=True,
            help="The OpenID issuer with whose identities persons may log in: docs/access.md.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def history_options(command: Decorated) -> Decorated:
    """--history and its limits: of a server."""
    for option in (
        click.option(
            "--history-max", type=SIZE, envvar="ROOST_HISTORY_MAX", metavar="SIZE",
            help="How large the history may be; the oldest goes. [default: 10GiB]",
        ),
        click.option(
            "--history-keep", "history_keep_ms", type=DURATION, envvar="ROOST_HISTORY_KEEP", metavar="DURATION",
            help="How long it is kept. [default: 90d]",
        ),
        click.option(
            "--history", type=click.Choice(["auto", "on", "off"]), envvar="ROOST_HISTORY", show_envvar=True,
            help="Keep what is over and what happened, for `roost history`; auto: unless the store is memory.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Options like K=V, as they are written."""
    for value in values:
        name, separator, _ = value.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"{value!r} is not like NAME=VALUE", ctx, param)
    return values
