"""roost secrets: confidential values for processes."""

import sys

import click

from roost.cli.common.format import ago
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, echo_err, listed
from roost.cli.common.session import client_output, connect, deletion, json_output, listing
from roost.cli.common.targets import SECRET
from roost.client import Client
from roost.model.limits import SECRET_BYTES_MAX
from roost.schema.access.secrets import SecretView

HEADER = ("SECRET", "BYTES", "CHANGED", "BY", "STATE")


@listing("secrets")
@project_option
@client_output
def secrets(client: Client, project: str) -> Output:
    """Set, list and remove secrets of projects.

    They are encrypted at rest, and no command shows them.

    Examples:
      roost secrets set web/db                       prompts for the value
      roost secrets list --project web
      roost secrets remove web/db

    Next: `env: {DB_PASSWORD: {secret: db}}` in a workload of project web uses it.
    """
    found = client.secrets.list(project)
    empty = f"project {project} has no secrets; `roost secrets set {project}/NAME` sets one"
    return listed(found, HEADER, _row, empty)


@secrets.command("set")
@click.argument("secret", type=SECRET, metavar="PROJECT/NAME")
@click.option("--exact", is_flag=True, help="Keep a newline at the end of the value.")
@json_output
def set_(secret: tuple[str, str], exact: bool) -> Output:
    """Set a secret; its value comes from standard input or a prompt.

    Examples:
      roost secrets set web/db                       prompts for the value, twice
      pass show db | roost secrets set web/db        one newline at the end is removed
      roost secrets set web/key --exact < key.bin    every byte as it is

    The value is never an argument: other users of this machine and shell histories see arguments.

    Next: `env: {DB_PASSWORD: {secret: db}}` in a workload. New attempts get the new value.
    """
    value = _read(exact)
    with connect() as client:
        found = client.secrets.set_value(*secret, value)
    return Output(found, f"secret {found.project}/{found.name} is set: {found.size:,} bytes")


deletion(
    secrets, "remove", "PROJECT/NAME", "secrets", "Delete a secret.",
    example="web/db", done="secret {} is deleted", key=SECRET,
    then="`roost secrets list`. Running work keeps it; later attempts that need it fail to start.",
)  # fmt: skip


@secrets.command()
@client_output
def reseal(client: Client) -> Output:
    """Encrypt the secrets of all projects again with the newest key of the server.

    Examples:
      roost server --key-file new.key --key-file old.key     first: the server has both
      roost secrets reseal

    Next: start the server without the old key.
    """
    done = client.secrets.reseal()

    def show() -> None:
        echo_err(f"{done.resealed:,} secrets were sealed again with the newest key")
        for name in done.unreadable:
            echo_err(f"secret {name} cannot be opened with any key of the server: `roost secrets set {name}`")

    return Output(done, show)


def _read(exact: bool) -> bytes:
    if sys.stdin.isatty():
        typed: str = click.prompt("Value", hide_input=True, confirmation_prompt="Once more", err=True)
        return typed.encode()
    value = sys.stdin.buffer.read(SECRET_BYTES_MAX + 3)  # one more than is taken, and a newline of two
    if not exact:
        value = value.removesuffix(b"\n").removesuffix(b"\r")
    if not value:
        raise click.UsageError("standard input is empty: there is no value to set")
    if len(value) > SECRET_BYTES_MAX:
        raise click.UsageError(f"a secret may have {SECRET_BYTES_MAX:,} bytes")
    return value


def _row(secret: SecretView) -> tuple[str, ...]:
    state = "cannot be opened" if not secret.readable else "ok" if secret.newest_key else "older key"
    return f"{secret.project}/{secret.name}", str(secret.size), ago(secret.changed_ms), secret.changed_by, state
