"""roost secrets: values that runs need and nobody else is to read."""

import sys
from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, print_json, print_table, say
from roost.cli.session import connect, json_option, project_option
from roost.model.limits import DEFAULT_PROJECT, SECRET_BYTES_MAX

if TYPE_CHECKING:
    from roost.client.secrets import Secret

HEADER = ("SECRET", "BYTES", "CHANGED", "BY", "STATE")


class SecretName(click.ParamType[tuple[str, str]]):
    """An argument that names a secret."""

    name = "secret"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        project, slash, name = value.rpartition("/")
        if not name or "/" in project or (slash and not project):
            self.fail(f"{value!r} is not like PROJECT/NAME, or NAME in project {DEFAULT_PROJECT}", param, ctx)
        return project or DEFAULT_PROJECT, name


SECRET = SecretName()


@click.group(
    epilog="""\b
Examples:
  roost secrets set web/db                       asks for the value
  roost secrets list --project web
  roost secrets remove web/db
\b
Next: `env: {DB_PASSWORD: {secret: db}}` in a workload of project web gives it to each run; docs/secrets.md.
"""
)
def secrets() -> None:
    """Set, list and remove secrets of projects.

    They are sealed where they are stored, and no command shows them again.
    """


@secrets.command(
    "set",
    epilog="""\b
Examples:
  roost secrets set web/db                       asks for the value, twice, without showing it
  pass show db | roost secrets set web/db        one newline at the end is not part of it
  roost secrets set web/key --exact < key.bin    every byte as it is
\b
The value is never an argument: those are seen by everybody on this machine, and kept by shells.
\b
Next: `env: {DB_PASSWORD: {secret: db}}` in a workload. Runs that begin from now on get the new value.
""",
)
@click.argument("secret", type=SECRET, metavar="PROJECT/NAME")
@click.option("--exact", is_flag=True, help="Keep a newline at the end of what is read.")
@json_option
def set_(secret: tuple[str, str], exact: bool, as_json: bool) -> None:
    """Set a secret; its value is read from standard input, or asked for."""
    value = _read(exact)
    with connect() as client:
        found = client.set_secret(*secret, value)
    if as_json:
        print_json(found)
    else:
        say(f"secret {found.project}/{found.name} is set: {found.size:,} bytes")


@secrets.command(
    "list",
    epilog="""\b
Examples:
  roost secrets list --project web
\b
Next: `roost secrets set` for those that cannot be opened; `roost secrets reseal` for those with an older key.
""",
)
@project_option
@json_option
def list_(project: str, as_json: bool) -> None:
    """List the secrets of a project: never their values."""
    with connect() as client:
        found = client.secrets(project)
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(secret) for secret in found])
    if not found:
        say(f"project {project} has no secrets; `roost secrets set {project}/NAME` sets one")


@secrets.command(
    epilog="""\b
Examples:
  roost secrets remove web/db
\b
Next: `roost secrets list`. What runs keeps it; what refers to it and has not begun will fail to start.
"""
)
@click.argument("secret", type=SECRET, metavar="PROJECT/NAME")
@json_option
def remove(secret: tuple[str, str], as_json: bool) -> None:
    """Forget a secret."""
    project, name = secret
    with connect() as client:
        client.remove_secret(project, name)
    if as_json:
        print_json({"project": project, "name": name})
    else:
        say(f"secret {project}/{name} is gone")


@secrets.command(
    epilog="""\b
Examples:
  roost server --key-file new.key --key-file old.key     first: the server has both
  roost secrets reseal
\b
Next: start the server without the old key.
"""
)
@json_option
def reseal(as_json: bool) -> None:
    """Seal the secrets of all projects again with the server's newest key."""
    with connect() as client:
        done = client.reseal_secrets()
    if as_json:
        print_json(done)
        return
    say(f"{done.resealed:,} secrets were sealed again with the newest key")
    for name in done.unreadable:
        say(f"secret {name} cannot be opened with any key of the server: `roost secrets set {name}`")


def _read(exact: bool) -> bytes:
    """The value, from a pipe or from whoever types it."""
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


def _row(secret: "Secret") -> tuple[str, ...]:
    if not secret.readable:
        state = "cannot be opened"
    else:
        state = "ok" if secret.newest_key else "older key"
    return f"{secret.project}/{secret.name}", str(secret.size), ago(secret.changed_ms), secret.changed_by, state
