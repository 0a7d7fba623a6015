"""roost hooks: webhooks and their deliveries; for receivers: verification of a signature."""

import sys
import time
from pathlib import Path
from typing import IO, Any

import click

from roost.cli.common.exit_codes import DONE, FAILED, Failure
from roost.cli.common.format import ago
from roost.cli.common.output import Output, echo_err, print_table
from roost.cli.common.session import client_output, connect, deletion, json_output, listing
from roost.cli.common.targets import HOOK
from roost.client import Client
from roost.model.errors import Invalid
from roost.model.records.webhook import check_signature
from roost.schema.webhooks import HookView

HEADER = ("HOOK", "STATE", "DELIVERED", "FAILED", "PENDING", "LOST", "LAST", "URL")
BODY_BYTES_MAX = 1 << 20  # messages have a kilobyte
SECRET_READ_MAX = 1_024


@listing("hooks")
@client_output
def hooks(client: Client) -> Output:
    """List, set, test and remove webhooks.

    Examples:
      roost hooks                                              delivery status
      roost hooks set web/chat --url https://h.example/roost --secret-file key
      roost hooks test web/chat
      roost hooks remove web/chat

    Next: `roost hooks verify` checks a signature. A hook without a project covers all projects (admins only).
    """
    found = client.webhooks.list()

    def show() -> None:
        print_table(HEADER, [_row(hook) for hook in found])
        for hook in found:
            troubles = {
                f"the last try failed: {hook.last_error}": hook.last_error and hook.waiting,
                f"{hook.given_up:,} events were given up after an hour of trying": hook.given_up,
                f"{hook.dropped:,} events were dropped: more waited than there is room for": hook.dropped,
                hook.missing: hook.missing,
            }
            for message in [message for message, holds in troubles.items() if holds]:
                echo_err(f"hook {hook.project}/{hook.name}: {message}")
        if not found:
            echo_err("there are no hooks; `roost hooks set PROJECT/NAME --url URL` sets one")

    return Output(found, show)


@hooks.command("set")
@click.argument("hook", type=HOOK, metavar="[PROJECT/]NAME")
@click.option("--url", required=True, help="URL of the receiver: http or https.")
@click.option("--event", "events", multiple=True, metavar="EVENT",
              help="Event, like instance.failed, node.*; repeatable. [default: every end]")  # fmt: skip
@click.option("--workload", default="", metavar="PATTERN",
              help="Only workloads NAME or PREFIX*; for a hook of all projects PROJECT/NAME.")  # fmt: skip
@click.option("--secret-file", type=click.File("rb"), help="File with the signing secret; -: standard input.")
@click.option("--unsigned", is_flag=True, help="Remove the secret.")
@click.option("--disabled", is_flag=True, help="Keep it, and send no events.")
@json_output
def set_(hook: tuple[str, str], secret_file: IO[bytes] | None, unsigned: bool, disabled: bool, **fields: Any) -> Output:
    """Set a webhook. It receives events from now on.

    Examples:
      roost hooks set web/chat --url https://h.example/roost        every end in project web, not signed
      openssl rand -hex 32 | tee key | roost hooks set web/chat --url https://h.example/roost --secret-file -
      roost hooks set web/red --url https://h.example/red --event instance.failed --workload 'nightly-*'
      roost hooks set nodes --url https://h.example/nodes --event 'node.*'       of all projects

    The secret is never an argument: other users of this machine and shell histories see arguments.

    Next: `roost hooks test web/chat`. A hook keeps its secret unless another one is given.
    """
    if secret_file is not None and unsigned:
        raise click.UsageError("--secret-file and --unsigned contradict each other")
    secret = None if unsigned else ""
    if secret_file is not None:
        try:
            secret = _secret(secret_file).decode()
        except UnicodeDecodeError:
            raise click.UsageError("the secret is not text; `openssl rand -hex 32` makes one that is") from None
    with connect() as client:
        found = client.webhooks.set(*hook, enabled=not disabled, secret=secret, **fields)
    how = "signed" if found.signed else "not signed"
    return Output(found, f"hook {found.project}/{found.name} is set: {', '.join(found.events)}; messages are {how}")


deletion(
    hooks, "remove", "[PROJECT/]NAME", "webhooks", "Delete a webhook.",
    example="web/chat", done="hook {} is deleted", key=HOOK,
    then="`roost hooks`. Its pending events are dropped.",
)  # fmt: skip


@hooks.command()
@click.argument("hook", type=HOOK, metavar="[PROJECT/]NAME")
@client_output
def test(client: Client, hook: tuple[str, str]) -> Output:
    """Send a ping and show the answer; exit code 1 if it was not accepted.

    Examples:
      roost hooks test web/chat
      roost hooks test command:pager          a command hook of the server

    Next: `roost hooks` shows the deliveries.
    """
    tried = client.webhooks.test(*hook)
    how = f"took the ping in {tried.took_ms} ms" if tried.ok else f"did not take the ping: {tried.message}"
    return Output(tried, f"hook {hook[0]}/{hook[1]} {how}", DONE if tried.ok else FAILED)


@hooks.command()
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True,
              help="File with the signing secret.")  # fmt: skip
@click.option("--signature", required=True, help="Value of the header Roost-Signature.")
@click.option("--max-age", type=click.IntRange(1, 10**9), default=300, show_default=True, metavar="SECONDS",
              help="Maximum age of a signature.")  # fmt: skip
def verify(secret_file: Path, signature: str, max_age: int) -> None:
    """Verify the signature of a message; its body comes from standard input.

    Examples:
      roost hooks verify --secret-file key --signature "$HTTP_ROOST_SIGNATURE" < body.json

    It needs no server. Exit code 1: wrong secret, changed message, or old signature.

    Next: `roost hooks test NAME` sends a signed ping.
    """
    body = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        raise click.UsageError(f"a message has at most {BODY_BYTES_MAX:,} bytes")
    with secret_file.open("rb") as file:
        secret = _secret(file)
    try:
        check_signature(secret, signature, body, int(time.time()), max_age)
    except Invalid as error:
        raise Failure(f"the signature is not right: {error.message}") from None
    echo_err("the signature is right")


def _secret(file: IO[bytes]) -> bytes:
    """A secret without the newline that editors and `openssl rand` put behind it."""
    value = file.read(SECRET_READ_MAX).removesuffix(b"\n").removesuffix(b"\r")
    if not value:
        raise click.UsageError("the secret is empty")
    return value


def _row(hook: HookView) -> tuple[str, ...]:
    state = "disabled" if not hook.enabled else "failing" if hook.last_error and hook.waiting else "ok"
    return (
        f"{hook.project}/{hook.name}", state, str(hook.delivered), str(hook.failed), str(hook.waiting),
        str(hook.given_up + hook.dropped), ago(hook.last_ms), "a command" if hook.command else hook.url,
    )  # fmt: skip
