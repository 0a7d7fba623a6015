"""Options of a server about outside controllers."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def controller_options(address: "click.ParamType[Any]") -> Callable[[Decorated], Decorated]:
    """--controller-listen and --no-controllers."""

    def decorate(command: Decorated) -> Decorated:
        for option in (
            click.option(
                "--controllers/--no-controllers", default=True, envvar="ROOST_CONTROLLERS",
                help="Whether outside controllers are listened to, over gRPC.",
            ),
            click.option(
                "--controller-listen", type=address, envvar="ROOST_CONTROLLER_LISTEN",
                help="For controllers. [default: the API's port + 2]",
            ),
        ):  # fmt: skip
            command = option(command)
        return command

    return decorate
