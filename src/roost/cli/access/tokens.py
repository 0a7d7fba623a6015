"""roost tokens: credentials of programs, each with a role, projects and an expiry."""

import click

from roost.cli.common.format import ago, current_ms
from roost.cli.common.output import Output, echo_err, listed
from roost.cli.common.session import client_output, connect, deletion, json_output, listing
from roost.client import Client
from roost.schema.access.roles import TokenMade, TokenView

HEADER = ("TOKEN", "ROLE", "PROJECTS", "EXPIRES", "USED", "CREATED BY")
UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000))

role_option = click.option(
    "--role", type=click.Choice(("viewer", "submitter", "operator", "admin")), required=True,
    help="viewer reads, submitter runs work, operator manages nodes and settings, admin gives access.",
)  # fmt: skip


@listing("tokens")
@client_output
def tokens(client: Client) -> Output:
    """List API tokens (never their secrets); create, rotate and revoke them.

    Admins of a project manage its tokens; admins of all projects manage all.

    Examples:
      roost tokens
      roost tokens create ci --role submitter --project web --expires 30d
      roost tokens rotate ci --overlap 1h
      roost tokens revoke ci

    Next: set ROOST_URL and ROOST_TOKEN where it is used.
    """
    found = client.tokens.list()
    empty = "there are no tokens; `roost tokens create NAME --role ROLE --project PROJECT` makes one"
    return listed(found, HEADER, _row, empty)


@tokens.command()
@click.argument("name", metavar="NAME")
@role_option
@click.option("-p", "--project", "projects", multiple=True, metavar="PROJECT", help="Project; repeatable.")
@click.option("--everywhere", is_flag=True, help="All projects, nodes and pools.")
@click.option("--expires", metavar="DURATION", help="Lifetime: 30d, 12h, or never. [default: 90d]")
@json_output
def create(name: str, role: str, projects: tuple[str, ...], everywhere: bool, expires: str | None) -> Output:
    """Create a token and print it, once.

    Examples:
      roost tokens create ci --role submitter --project web --expires 30d
      roost tokens create prometheus --role viewer --everywhere --expires 366d
      export ROOST_TOKEN=$(roost tokens create ci --role submitter --project web)

    Next: `roost tokens` lists it. The secret is printed once; rotate a lost one.
    """
    if everywhere == bool(projects):
        raise click.UsageError("give its scope: --project PROJECT, or --everywhere")
    with connect() as client:
        return _made(client.tokens.create(name, role, ["*"] if everywhere else projects, expires=expires))


@tokens.command()
@click.argument("name", metavar="NAME")
@click.option("--overlap", metavar="DURATION", help="How long the old secret stays valid. [default: 1h]")
@click.option("--expires", metavar="DURATION", help="Lifetime of the new secret. [default: as the old one]")
@client_output
def rotate(client: Client, name: str, overlap: str | None, expires: str | None) -> Output:
    """Create a new secret for a token and print it, once.

    Examples:
      roost tokens rotate ci
      roost tokens rotate ci --overlap 1d
      roost tokens rotate ci --overlap 0          the old secret expires now

    Next: replace the secret where it is used before the overlap ends.
    """
    return _made(client.tokens.rotate(name, overlap=overlap, expires=expires))


deletion(
    tokens, "revoke", "NAME", "tokens", "Revoke a token at once.",
    example="ci", done="token {} is revoked",
    then="`roost audit --who token:ci` shows what it did.",
)  # fmt: skip


def _made(made: TokenMade) -> Output:
    def show() -> None:
        click.echo(made.token)
        where = "everywhere" if made.projects == ["*"] else f"in {', '.join(made.projects)}"
        overlap = f"; the old secret expires {_left(made.overlap_until_ms)}" if made.overlap_until_ms else ""
        echo_err(f"token {made.name}: {made.role} {where}, expires {_left(made.expires_ms)}{overlap}")
        echo_err("it is not shown again")

    return Output(made, show)


def _row(token: TokenView) -> tuple[str, ...]:
    where = "everywhere" if token.projects == ["*"] else ", ".join(token.projects)
    ends = "expired" if token.expired else _left(token.expires_ms)
    return token.name, token.role, where, ends, ago(token.used_ms), token.created_by


def _left(at_ms: int | None) -> str:
    """`in 29d`, `in 3h`: the nearest unit is enough."""
    if at_ms is None:
        return "never"
    left = max(0, at_ms - current_ms())
    return next(
        (f"in {round(left / length)}{unit}" for unit, length in UNITS if left >= length), f"in {left // 1_000}s"
    )
