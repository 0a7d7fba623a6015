"""roost join-tokens: invite machines to become nodes."""

import time
from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, print_json, print_table, say
from roost.cli.session import connect, json_option
from roost.model.units import show_duration

if TYPE_CHECKING:
    from roost.client.types import JoinToken

HEADER = ("ID", "POOL", "USES LEFT", "EXPIRES IN", "CREATED")
UNLIMITED = "unlimited"


class UsesType(click.ParamType[int | None]):
    """A number, or `unlimited` (None)."""

    name = "N|unlimited"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == UNLIMITED:
            return None
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {UNLIMITED}", param, ctx)


@click.group(
    "join-tokens",
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost join-tokens
  roost join-tokens create --pool ci --uses 10 --expires 1d
  roost join-tokens revoke 3fa29b01c4
\b
Next: `roost agent --join TOKEN` on the machine that is to become a node.
""",
)
@json_option
@click.pass_context
def join_tokens(ctx: click.Context, as_json: bool) -> None:
    """List join tokens (never their secrets); create and revoke them."""
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.join_tokens()
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(token) for token in found])
    if not found:
        say("there are no join tokens; `roost join-tokens create` makes one")


@join_tokens.command(
    "list",
    epilog="""\b
Examples:
  roost join-tokens list
  roost join-tokens list --json
\b
Next: `roost join-tokens revoke ID` for one that nobody needs any more.
""",
)
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List join tokens, as `roost join-tokens` does."""
    ctx.invoke(join_tokens, as_json=as_json)


@join_tokens.command(
    epilog="""\b
Examples:
  roost join-tokens create
  roost join-tokens create --pool gpu --uses unlimited --expires 30d
  ssh gpu-1 "roost agent --join $(roost join-tokens create --pool gpu)"
\b
Next: `roost agent --join TOKEN` on that machine. The token is printed now and never again.
"""
)
@click.option("--pool", default="", help="The pool of whoever joins with it. [default: as its agent says]")
@click.option("--uses", type=UsesType(), default=1, show_default=True, help="How many machines can join with it.")
@click.option("--expires", default="1h", show_default=True, metavar="DURATION", help="For how long.")
@json_option
def create(pool: str, uses: int | None, expires: str, as_json: bool) -> None:
    """Make a token with which machines can join, and print it."""
    with connect() as client:
        made = client.create_join_token(pool=pool, uses=uses, expires=expires)
    if as_json:
        print_json(made)
    else:
        click.echo(made.token)


@join_tokens.command(
    epilog="""\b
Examples:
  roost join-tokens revoke 3fa29b01c4
\b
Next: `roost join-tokens`. Nodes that have joined with it stay; `roost nodes remove NODE` ends one.
"""
)
@click.argument("id", metavar="ID")
def revoke(id: str) -> None:
    """Make a join token useless."""
    with connect() as client:
        client.revoke_join_token(id)
    say(f"join token {id} is revoked")


def _row(token: "JoinToken") -> tuple[str, ...]:
    left_ms = max(0, token.expires_ms - time.time_ns() // 1_000_000)
    uses = UNLIMITED if token.uses is None else str(token.uses)
    return token.id, token.pool or "-", uses, show_duration(left_ms), ago(token.created_ms)
