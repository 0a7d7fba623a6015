"""What an operator can choose about certificates: options that `roost server` and `roost up` share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roost.cli.datadir import DataDir
from roost.cli.session import DURATION

if TYPE_CHECKING:
    from roost.client.config import Config
    from roost.server.config import ServerConfig

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)
OPTIONS = (
    click.option(
        "--advertise", multiple=True, metavar="HOST", envvar="ROOST_ADVERTISE",
        help="A name or address by which others reach this server; may be repeated. [default: as it listens]",
    ),
    click.option(
        "--tls", type=click.Choice(["auto", "on", "off"]), default="auto", envvar="ROOST_TLS", show_default=True,
        help="TLS for the API. auto: unless only this machine can reach it.",
    ),
    click.option(
        "--tls-cert", type=FILE, envvar="ROOST_TLS_CERT", metavar="FILE",
        help="A certificate of your own for the API, in PEM; read again when it changes. [default: of Roost's CA]",
    ),
    click.option("--tls-key", type=FILE, envvar="ROOST_TLS_KEY", metavar="FILE", help="The key of --tls-cert."),
    click.option(
        "--key-file", "key_files", type=FILE, multiple=True, metavar="FILE", envvar="ROOST_KEY_FILE",
        help="The key that seals secrets at rest, 64 hexadecimal digits. May be repeated: the first seals, all of them "
        "open. [default: DATA/seal.key]",
    ),
    click.option(
        "--key-command", default="", metavar="COMMAND", envvar="ROOST_KEY_COMMAND",
        help="A command that prints that key.",
    ),
    click.option(
        "--certificate-life", "certificate_ms", type=DURATION, metavar="DURATION", envvar="ROOST_CERTIFICATE_LIFE",
        help="How long certificates are good; they are renewed in time. [default: 30d]",
    ),
    click.option(
        "--new-authority", is_flag=True,
        help="Put a new CA into the place of the old one: all nodes have to join again.",
    ),
)  # fmt: skip


def certificate_options(command: Decorated) -> Decorated:
    """--tls, --key-file and their like: of a server."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def client_config(config: "ServerConfig", home: DataDir, address: str) -> "Config":
    """How to reach a server that is ready at HOST:PORT, from this machine."""
    from roost.client.config import Config  # noqa: PLC0415

    if not config.serves_tls():
        return Config(f"http://{address}", config.admin_token)
    if config.tls_cert is None:
        return Config(f"https://{address}", config.admin_token, home.authority())
    host = config.advertise[0] if config.advertise else address.rpartition(":")[0]
    return Config(f"https://{host}:{address.rpartition(':')[2]}", config.admin_token)
