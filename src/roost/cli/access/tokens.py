"""roost tokens: credentials of programs, each with a role, projects and an expiry."""

import click

from roost.cli.common.output import ago, echo_err, print_json, print_list, print_result
from roost.cli.common.session import connect, json_option, listing
from roost.schema.access import TokenMade, TokenView

HEADER = ("TOKEN", "ROLE", "PROJECTS", "EXPIRES", "USED", "CREATED BY")
ROLES = ("viewer", "submitter", "operator", "admin")
DAY_MS = 86_400_000


@listing("tokens")
@json_option
def tokens(as_json: bool) -> None:
    """List API tokens (never their secrets); create, rotate and revoke them.

    Admins of a project manage its tokens; admins of all projects manage all.

    Examples:
      roost tokens
      roost tokens create ci --role submitter --project web --expires 30d
      roost tokens rotate ci --overlap 1h
      roost tokens revoke ci

    Next: set ROOST_URL and ROOST_TOKEN where it is used; docs/guides/access.md lists the roles.
    """
    with connect() as client:
        found = client.tokens.list()
    empty = "there are no tokens; `roost tokens create NAME --role ROLE --project PROJECT` makes one"
    print_list(found, as_json, HEADER, _row, empty)


@tokens.command()
@click.argument("name", metavar="NAME")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role: docs/guides/access.md.")
@click.option("-p", "--project", "projects", multiple=True, metavar="PROJECT", help="Project; repeatable.")
@click.option("--everywhere", is_flag=True, help="All projects, nodes and pools.")
@click.option("--expires", metavar="DURATION", help="Lifetime: 30d, 12h, or never. [default: 90d]")
@json_option
def create(
    name: str, role: str, projects: tuple[str, ...], everywhere: bool, expires: str | None, as_json: bool
) -> None:  # fmt: skip
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
        made = client.tokens.create(name, role, ["*"] if everywhere else projects, expires=expires)
    _print_made(made, as_json)


@tokens.command()
@click.argument("name", metavar="NAME")
@click.option("--overlap", metavar="DURATION", help="How long the old secret stays valid. [default: 1h]")
@click.option("--expires", metavar="DURATION", help="Lifetime of the new secret. [default: as the old one]")
@json_option
def rotate(name: str, overlap: str | None, expires: str | None, as_json: bool) -> None:
    """Create a new secret for a token and print it, once.

    Examples:
      roost tokens rotate ci
      roost tokens rotate ci --overlap 1d
      roost tokens rotate ci --overlap 0          the old secret expires now

    Next: replace the secret where it is used before the overlap ends.
    """
    with connect() as client:
        made = client.tokens.rotate(name, overlap=overlap, expires=expires)
    _print_made(made, as_json)


@tokens.command()
@click.argument("name", metavar="NAME")
@json_option
def revoke(name: str, as_json: bool) -> None:
    """Revoke a token at once.

    Examples:
      roost tokens revoke ci

    Next: `roost audit --who token:ci` shows what it did.
    """
    with connect() as client:
        client.tokens.delete(name)
    print_result({"name": name}, as_json, f"token {name} is revoked")


def _print_made(made: TokenMade, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    click.echo(made.token)
    where = "everywhere" if made.projects == ["*"] else f"in {', '.join(made.projects)}"
    overlap = f"; the old secret expires {_left(made.overlap_until_ms)}" if made.overlap_until_ms else ""
    echo_err(f"token {made.name}: {made.role} {where}, expires {_left(made.expires_ms)}{overlap}")
    echo_err("it is not shown again")


def _row(token: TokenView) -> tuple[str, ...]:
    where = "everywhere" if token.projects == ["*"] else ", ".join(token.projects)
    ends = "expired" if token.expired else _left(token.expires_ms)
    return token.name, token.role, where, ends, ago(token.used_ms), token.created_by


def _left(at_ms: int | None) -> str:
    """`in 29d`, `in 3h`: the nearest unit is enough."""
    if at_ms is None:
        return "never"
    import time

    left = max(0, at_ms - int(time.time() * 1_000))
    for unit, length in (("d", DAY_MS), ("h", 3_600_000), ("m", 60_000)):
        if left >= length:
            return f"in {round(left / length)}{unit}"
    return f"in {left // 1_000}s"
