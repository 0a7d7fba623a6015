"""Options of a server about hooks."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def hook_options(command: Decorated) -> Decorated:
    """--hook and --hooks-to-loopback."""
    for option in (
        click.option(
            "--hooks-to-loopback", is_flag=True, envvar="ROOST_HOOKS_TO_LOOPBACK",
            help="Let webhooks go to this host itself.",
        ),
        click.option(
            "--hook", "hooks", multiple=True, metavar="NAME[:EVENT,...]=COMMAND",
            help="Run a command here for each event, which it reads as JSON: docs/hooks.md.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command
