"""roost tokens: how programs come in. Each has a role in some projects, and an end."""

from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, print_json, print_table, say
from roost.cli.session import connect, json_option

if TYPE_CHECKING:
    from roost.client.access import NewToken, Token

HEADER = ("TOKEN", "ROLE", "PROJECTS", "EXPIRES", "USED", "CREATED BY")
ROLES = ("viewer", "submitter", "operator", "admin")
DAY_MS = 86_400_000


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost tokens
  roost tokens create ci --role submitter --project web --expires 30d
  roost tokens rotate ci --overlap 1h
  roost tokens revoke ci
\b
Next: ROOST_URL=... ROOST_TOKEN=... for whoever uses one; docs/access.md says what each role may do.
""",
)
@json_option
@click.pass_context
def tokens(ctx: click.Context, as_json: bool) -> None:
    """List API tokens (never their secrets); create, rotate and revoke them.

    Admins of a project see and make tokens for it; admins of everything all of them.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.tokens()
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(token) for token in found])
    if not found:
        say("there are no tokens; `roost tokens create NAME --role ROLE --project PROJECT` makes one")


@tokens.command(
    "list",
    epilog="""\b
Examples:
  roost tokens list
  roost tokens list --json
\b
Next: `roost tokens rotate NAME` for one that ends soon, `roost tokens revoke NAME` for one that nobody uses.
""",
)
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List API tokens, as `roost tokens` does."""
    ctx.invoke(tokens, as_json=as_json)


@tokens.command(
    epilog="""\b
Examples:
  roost tokens create ci --role submitter --project web --expires 30d
  roost tokens create prometheus --role viewer --everywhere --expires 366d
  export ROOST_TOKEN=$(roost tokens create ci --role submitter --project web)
\b
Next: `roost tokens` lists it. The secret is printed now and never again; a lost one is rotated.
"""
)
@click.argument("name", metavar="NAME")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do: docs/access.md.")
@click.option(
    "-p", "--project", "projects", multiple=True, metavar="PROJECT", help="Where; may be given several times."
)
@click.option("--everywhere", is_flag=True, help="In all projects, and for nodes and pools.")
@click.option("--expires", metavar="DURATION", help="When it ends: 30d, 12h, or never. [default: 90d]")
@json_option
def create(
    name: str, role: str, projects: tuple[str, ...], everywhere: bool, expires: str | None, as_json: bool
) -> None:  # fmt: skip
    """Create a token, and print it: the only time that it is shown."""
    if everywhere == bool(projects):
        raise click.UsageError("say where it is good: --project PROJECT, or --everywhere")
    with connect() as client:
        made = client.create_token(name, role, ["*"] if everywhere else projects, expires=expires)
    _print_made(made, as_json)


@tokens.command(
    epilog="""\b
Examples:
  roost tokens rotate ci
  roost tokens rotate ci --overlap 1d
  roost tokens rotate ci --overlap 0          the old secret ends now
\b
Next: give the new secret to whoever uses the token before the overlap ends.
"""
)
@click.argument("name", metavar="NAME")
@click.option("--overlap", metavar="DURATION", help="How long the old secret stays good. [default: 1h]")
@click.option("--expires", metavar="DURATION", help="When the new one ends. [default: after as long as the old one]")
@json_option
def rotate(name: str, overlap: str | None, expires: str | None, as_json: bool) -> None:
    """Give a token a new secret, and print it: the only time that it is shown."""
    with connect() as client:
        made = client.rotate_token(name, overlap=overlap, expires=expires)
    _print_made(made, as_json)


@tokens.command(
    epilog="""\b
Examples:
  roost tokens revoke ci
\b
Next: `roost audit --who token:ci` shows what it did.
"""
)
@click.argument("name", metavar="NAME")
@json_option
def revoke(name: str, as_json: bool) -> None:
    """End a token at once."""
    with connect() as client:
        client.revoke_token(name)
    if as_json:
        print_json({"name": name})
    else:
        say(f"token {name} is good for nothing any more")


def _print_made(made: "NewToken", as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    click.echo(made.token)
    where = "everywhere" if made.projects == ["*"] else f"in {', '.join(made.projects)}"
    overlap = f"; the old secret stays good {_left(made.overlap_until_ms)}" if made.overlap_until_ms else ""
    say(f"token {made.name}: {made.role} {where}, ends {_left(made.expires_ms)}{overlap}")
    say("it is not shown again")


def _row(token: "Token") -> tuple[str, ...]:
    where = "everywhere" if token.projects == ["*"] else ", ".join(token.projects)
    ends = "expired" if token.expired else _left(token.expires_ms)
    return token.name, token.role, where, ends, ago(token.used_ms), token.created_by


def _left(at_ms: int | None) -> str:
    """`in 29d`, `in 3h`: the nearest unit is enough."""
    if at_ms is None:
        return "never"
    import time  # noqa: PLC0415

    left = max(0, at_ms - int(time.time() * 1_000))
    for unit, length in (("d", DAY_MS), ("h", 3_600_000), ("m", 60_000)):
        if left >= length:
            return f"in {round(left / length)}{unit}"
    return f"in {left // 1_000}s"
