"""roost leader: which server leads, which stand by, and handing the lead over."""

import time
from typing import TYPE_CHECKING

import click

from roost.cli.outcome import Failure
from roost.cli.output import print_json, print_table
from roost.cli.session import connect, json_option

if TYPE_CHECKING:
    from roost.client.servers import Server

TRANSFER_S_MAX = 15.0
LOOK_S = 0.05
HEADER = ("SERVER", "ROLE", "API", "REVISION", "STATE", "VERSION")
LAG_TOLD = 100  # revisions that a standby may be behind without a word


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost leader                     who leads, who stands by
  roost leader transfer            let another server lead, as before an upgrade of this one
  roost leader transfer --to s2
\b
Next: `roost doctor` looks at all servers; docs/high-availability.md says what happens when one is gone.
""",
)
@json_option
@click.pass_context
def leader(ctx: click.Context, as_json: bool) -> None:
    """Show which server leads and which stand by.

    Of several servers on one store (PostgreSQL or etcd) one leads. The others follow it, answer reads, hand on
    writes, and take its place within seconds when it is gone.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        servers = client.servers()
    if as_json:
        print_json(servers)
        return
    newest = max((each.revision for each in servers.items), default=0)
    rows = [
        [
            each.name,
            each.role,
            each.api,
            f"{each.revision:,}",
            _state(each, newest),
            each.version,
        ]
        for each in servers.items
    ]
    print_table(HEADER, rows)


@leader.command(
    epilog="""\b
Examples:
  roost leader transfer            whoever is first
  roost leader transfer --to s2    this one
\b
Next: `roost leader` shows that all stand by again; then the server that led can be stopped or upgraded.
"""
)
@click.option("--to", "heir", default="", metavar="SERVER", help="Who is to lead. [default: whoever is first]")
@json_option
def transfer(heir: str, as_json: bool) -> None:
    """Let another server lead, and wait until it does. Nothing that runs notices."""
    with connect() as client:
        before = client.transfer_leader(heir)
        deadline = time.monotonic() + TRANSFER_S_MAX
        while True:
            servers = client.servers()
            now = next((each for each in servers.items if each.role == "leader"), None)
            if now is not None and now.name != before.name:
                break
            if time.monotonic() > deadline:
                raise Failure(f"{before.name} still leads", "`roost leader` shows how the others stand")
            time.sleep(LOOK_S)
    if as_json:
        print_json(servers)
    else:
        click.echo(f"{now.name} leads now; {before.name} stands by")


def _state(server: "Server", newest: int) -> str:
    behind = newest - server.revision
    return server.failed or (f"{behind:,} behind" if behind > LAG_TOLD else "ok")
