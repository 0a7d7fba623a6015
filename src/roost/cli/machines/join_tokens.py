"""roost join-tokens: invite machines to become nodes."""

import click

from roost.cli.common.format import ago, current_ms
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output, deletion, listing
from roost.client import Client
from roost.model.spec.units import show_duration
from roost.schema.access.enrolment import JoinTokenView

HEADER = ("ID", "POOL", "USES LEFT", "EXPIRES IN", "CREATED")
UNLIMITED = "unlimited"


def _uses(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    try:
        return None if value == UNLIMITED else int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor {UNLIMITED}", ctx, param) from None


@listing("join-tokens")
@client_output
def join_tokens(client: Client) -> Output:
    """List join tokens (never their secrets); create and revoke them.

    Examples:
      roost join-tokens
      roost join-tokens create --pool ci --uses 10 --expires 1d
      roost join-tokens revoke 3fa29b01c4

    Next: `roost agent --join TOKEN` on the new node.
    """
    found = client.join_tokens.list()
    return listed(found, HEADER, _row, "there are no join tokens; `roost join-tokens create` makes one")


@join_tokens.command()
@click.option("--pool", default="", help="Pool of the nodes that join with it. [default: set by the agent]")
@click.option("--uses", callback=_uses, default="1", show_default=True, metavar="N|UNLIMITED",
              help="Number of machines that can join with it.")  # fmt: skip
@click.option("--expires", default="1h", show_default=True, metavar="DURATION", help="Lifetime of the token.")
@client_output
def create(client: Client, pool: str, uses: int | None, expires: str) -> Output:
    """Create a join token and print it.

    Examples:
      roost join-tokens create
      roost join-tokens create --pool gpu --uses unlimited --expires 30d
      roost join-tokens create --pool gpu | ssh gpu-1 roost agent --join -

    Next: `roost agent --join TOKEN` on that machine. The token is printed now and never again.
    """
    made = client.join_tokens.create(pool=pool, uses=uses, expires=expires)
    return Output(made, lambda: click.echo(made.token))


deletion(
    join_tokens, "revoke", "ID", "join_tokens", "Revoke a join token.",
    example="3fa29b01c4", done="join token {} is revoked",
    then="`roost join-tokens`. Nodes that joined with it stay; `roost nodes remove NODE` removes one.",
)  # fmt: skip


def _row(token: JoinTokenView) -> tuple[str, ...]:
    left_ms = max(0, token.expires_ms - current_ms())
    uses = UNLIMITED if token.uses is None else str(token.uses)
    return token.id, token.pool or "-", uses, show_duration(left_ms), ago(token.created_ms)
