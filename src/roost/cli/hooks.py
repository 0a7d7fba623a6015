"""roost hooks: who is told of changes of state, and how that goes; for receivers: whether a message is from Roost."""

import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from roost.cli.outcome import Failure
from roost.cli.output import ago, print_json, print_table, say
from roost.cli.session import connect, json_option

if TYPE_CHECKING:
    from roost.client.hooks import Hook

HEADER = ("HOOK", "STATE", "DELIVERED", "FAILED", "WAITING", "LOST", "LAST", "TO")
BODY_BYTES_MAX = 1 << 20  # messages have a kilobyte
SECRET_READ_MAX = 1_024


class HookName(click.ParamType[tuple[str, str]]):
    """An argument that names a hook."""

    name = "hook"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        project, slash, name = value.rpartition("/")
        if not name or "/" in project or (slash and not project):
            self.fail(f"{value!r} is not like PROJECT/NAME, or NAME for a hook of all projects", param, ctx)
        return project or "*", name


HOOK = HookName()


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost hooks                                              how delivering goes
  roost hooks set web/chat --url https://h.example/roost --secret-file key
  roost hooks test web/chat
  roost hooks remove web/chat
\b
Next: docs/hooks.md has a receiver of twenty lines. A name without a project is a hook of all projects, for admins.
""",
)
@json_option
@click.pass_context
def hooks(ctx: click.Context, as_json: bool) -> None:
    """List, set, try and remove webhooks on changes of state."""
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.hooks()
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(hook) for hook in found])
    for hook in found:
        for words in _troubles(hook):
            say(f"hook {hook.project}/{hook.name}: {words}")
    if not found:
        say("there are no hooks; `roost hooks set PROJECT/NAME --url URL` sets one")


@hooks.command(
    "set",
    epilog="""\b
Examples:
  roost hooks set web/chat --url https://h.example/roost        every end in project web, not signed
  openssl rand -hex 32 | tee key | roost hooks set web/chat --url https://h.example/roost --secret-file -
  roost hooks set web/red --url https://h.example/red --event instance.failed --workload 'nightly-*'
  roost hooks set nodes --url https://h.example/nodes --event 'node.*'       of all projects
\b
The secret is never an argument: those are seen by everybody on this machine, and kept by shells.
\b
Next: `roost hooks test web/chat`. Set again, a hook keeps its secret unless another one is given.
""",
)
@click.argument("hook", type=HOOK, metavar="[PROJECT/]NAME")
@click.option("--url", required=True, help="Where messages are posted to: http or https.")
@click.option("--event", "events", multiple=True, metavar="EVENT",
              help="What it is told of, like instance.failed, node.*; repeatable. [default: every end]")  # fmt: skip
@click.option(
    "--workload", default="", metavar="PATTERN", help="Only of NAME or PREFIX*; of all projects PROJECT/NAME."
)
@click.option("--secret-file", type=click.File("rb"), help="Sign with what this file holds; -: standard input.")
@click.option("--unsigned", is_flag=True, help="Do not sign any more.")
@click.option("--disabled", is_flag=True, help="Keep it, and tell it nothing.")
@json_option
def set_(
    hook: tuple[str, str], url: str, events: tuple[str, ...], workload: str, secret_file: IO[bytes] | None,
    unsigned: bool, disabled: bool, as_json: bool,
) -> None:  # fmt: skip
    """Set a webhook: it is told of what happens from now on."""
    if secret_file is not None and unsigned:
        raise click.UsageError("--secret-file and --unsigned contradict each other")
    secret = None if unsigned else _text(_secret(secret_file)) if secret_file is not None else ""
    with connect() as client:
        found = client.set_hook(*hook, url, events=events, workload=workload, enabled=not disabled, secret=secret)
    if as_json:
        print_json(found)
        return
    how = "signed" if found.signed else "not signed"
    say(f"hook {found.project}/{found.name} is set: {', '.join(found.events)}; messages are {how}")


@hooks.command(
    epilog="""\b
Examples:
  roost hooks remove web/chat
\b
Next: `roost hooks`. What waited for it is forgotten.
"""
)
@click.argument("hook", type=HOOK, metavar="[PROJECT/]NAME")
@json_option
def remove(hook: tuple[str, str], as_json: bool) -> None:
    """Forget a webhook."""
    with connect() as client:
        client.remove_hook(*hook)
    if as_json:
        print_json({"project": hook[0], "name": hook[1]})
    else:
        say(f"hook {hook[0]}/{hook[1]} is gone")


@hooks.command(
    epilog="""\b
Examples:
  roost hooks test web/chat
  roost hooks test command:pager          a command hook of the server's settings
\b
Next: `roost hooks` shows how real events fare.
"""
)
@click.argument("hook", type=HOOK, metavar="[PROJECT/]NAME")
@json_option
def test(hook: tuple[str, str], as_json: bool) -> None:
    """Send a ping, and say what was answered; exit code 1 if it was not taken."""
    with connect() as client:
        tried = client.test_hook(*hook)
    if as_json:
        print_json(tried)
    elif tried.ok:
        say(f"hook {hook[0]}/{hook[1]} took the ping in {tried.took_ms} ms")
    if not tried.ok:
        raise Failure(f"hook {hook[0]}/{hook[1]} did not take the ping: {tried.words}")


@hooks.command(
    epilog="""\b
Examples:
  roost hooks verify --secret-file key --signature "$HTTP_ROOST_SIGNATURE" < body.json
\b
It speaks to no server. Exit code 1: the message is not from who has the secret, was changed, or is old.
\b
Next: docs/hooks.md says how to do the same in a program.
"""
)
@click.option("--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True,
              help="What messages are signed with.")  # fmt: skip
@click.option("--signature", required=True, help="What the header Roost-Signature says.")
@click.option("--max-age", type=click.IntRange(1, 10**9), default=300, show_default=True, metavar="SECONDS",
              help="An older signature is not believed.")  # fmt: skip
def verify(secret_file: Path, signature: str, max_age: int) -> None:
    """Check the signature of a message, whose body comes from standard input."""
    from roost.model.errors import Invalid  # noqa: PLC0415
    from roost.model.hook import check_signature  # noqa: PLC0415

    body = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        raise click.UsageError(f"a message has at most {BODY_BYTES_MAX:,} bytes")
    with secret_file.open("rb") as file:
        secret = _secret(file)
    try:
        check_signature(secret, signature, body, int(time.time()), max_age)
    except Invalid as error:
        raise Failure(f"the signature is not right: {error.message}") from None
    say("the signature is right")


def _secret(file: IO[bytes]) -> bytes:
    """A secret without the newline that editors and `openssl rand` put behind it."""
    value = file.read(SECRET_READ_MAX).removesuffix(b"\n").removesuffix(b"\r")
    if not value:
        raise click.UsageError("the secret is empty")
    return value


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise click.UsageError("the secret is not text; `openssl rand -hex 32` makes one that is") from None


def _row(hook: "Hook") -> tuple[str, ...]:
    state = "disabled" if not hook.enabled else "failing" if hook.last_error and hook.waiting else "ok"
    return (
        f"{hook.project}/{hook.name}", state, str(hook.delivered), str(hook.failed), str(hook.waiting),
        str(hook.given_up + hook.dropped), ago(hook.last_ms), "a command" if hook.command else hook.url,
    )  # fmt: skip


def _troubles(hook: "Hook") -> list[str]:
    """What its operator should know."""
    words = []
    if hook.last_error and hook.waiting:
        words.append(f"the last try failed: {hook.last_error}")
    if hook.given_up:
        words.append(f"{hook.given_up:,} events were given up after an hour of trying")
    if hook.dropped:
        words.append(f"{hook.dropped:,} events were dropped: more waited than there is room for")
    if hook.missing:
        words.append(hook.missing)
    return words
