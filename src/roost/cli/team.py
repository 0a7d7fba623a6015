"""Options of a server that shares its store with others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from roost.cli.session import DURATION

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def team_options(command: Decorated) -> Decorated:
    """Name, timing and logs of one of several servers."""
    options = [
        click.option("--name", envvar="ROOST_NAME", metavar="NAME", help="Among servers. [default: the host's name]"),
        click.option("--logs", envvar="ROOST_LOGS", type=click.Path(path_type=Path), metavar="DIRECTORY",
                     help="Logs of runs; may be shared by servers. [default: DATA/logs]"),
        click.option("--lead-ttl", "lead_ttl_ms", type=DURATION, envvar="ROOST_LEAD_TTL", metavar="DURATION",
                     help="A leader unheard of for so long is replaced. [default: 1.5s]"),
        click.option("--lead-renew", "lead_renew_ms", type=DURATION, envvar="ROOST_LEAD_RENEW", metavar="DURATION",
                     help="How often a leader is heard of. [default: 400ms]"),
        click.option("--lead-retry", "lead_retry_ms", type=DURATION, envvar="ROOST_LEAD_RETRY", metavar="DURATION",
                     help="... and how soon again when that failed. [default: 150ms]"),
        click.option("--hold", "hold_ms", type=DURATION, envvar="ROOST_HOLD", metavar="DURATION",
                     help="How long work goes on while the store is away. [default: 60s]"),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command
