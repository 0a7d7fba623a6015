"""Exit codes, and errors with what to do next."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from roost.cli.common.output import printable_lines
from roost.client.errors import ApiError, CannotSend, ClientError, NotConfigured, Unreachable, WaitTimedOut
from roost.model.errors import Invalid

DONE = 0
FAILED = 1
USAGE = 2
WOULD_CHANGE = 3
NOT_PLACED = 4
NO_RESULT = 5
TIMED_OUT = 124
INTERRUPTED = 130
BROKEN_PIPE = 141
NO_SERVER = 255

UNAUTHORIZED = 401
TOKEN_HINT = "check ROOST_TOKEN, or `token` in the file of ROOST_CONFIG; users run `roost login`"


class Failure(click.ClickException):
    def __init__(self, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.exit_code = exit_code  # type: ignore[misc]  # each end has its own

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"roost: {printable_lines(self.message)}", file=file, err=True)
        if self.hint:
            click.echo(f"       {printable_lines(self.hint)}", file=file, err=True)


def on_lines(errors: Iterable[object]) -> str:
    """Several errors as one message, each on a line."""
    return "\n       ".join(map(str, errors))


def hint_of(error: ClientError) -> str:
    """What to do about an error on the command line, where tokens are no headers."""
    return TOKEN_HINT if isinstance(error, ApiError) and error.status == UNAUTHORIZED else error.hint


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors into an exit code and a sentence."""
    try:
        yield
    except ClientError as error:
        errors = error.errors if isinstance(error, ApiError) else []
        message = on_lines(f"{path}: {text}" for path, text in errors) if len(errors) > 1 else str(error)
        raise Failure(message, hint_of(error), exit_code_of(error)) from None
    except Invalid as error:
        raise Failure(on_lines(error.every), exit_code=USAGE) from None
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("roost_lab"):
            raise
        raise Failure("this command needs the lab package", "pip install 'roost[lab]'", USAGE) from None
    except BrokenPipeError:
        # stdout is closed (`roost logs x | head`). What is still in stdout's buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def exit_code_of(error: ClientError) -> int:
    if isinstance(error, NotConfigured | Unreachable):
        return NO_SERVER
    if isinstance(error, WaitTimedOut):
        return TIMED_OUT
    if isinstance(error, CannotSend):
        return USAGE
    if isinstance(error, ApiError) and error.code == "rejected":
        return NOT_PLACED
    if isinstance(error, ApiError):
        return USAGE if error.status in (400, 413, 422) else NO_SERVER if error.status == 503 else FAILED
    return FAILED
