"""roost leader: show the leader and the standbys, transfer leadership."""

import time

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.common.output import print_json, print_table
from roost.cli.common.session import connect, json_option
from roost.schema.servers import ServerView

TRANSFER_S_MAX = 15.0
LOOK_S = 0.05
HEADER = ("SERVER", "ROLE", "API", "REVISION", "STATE", "VERSION")
LAG_SHOWN = 100  # a standby that is behind by fewer revisions is ok


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def leader(ctx: click.Context, as_json: bool) -> None:
    """Show the leader and the standbys.

    Of several servers on one store (PostgreSQL or etcd) one is the leader. The standbys follow it, answer reads,
    forward writes, and take over within seconds when it fails.

    Examples:
      roost leader                     the leader and the standbys
      roost leader transfer            transfer leadership, for example before an upgrade
      roost leader transfer --to s2

    Next: `roost doctor` checks all servers; docs/guides/high-availability.md explains failures.
    """
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        servers = client.servers.list()
    if as_json:
        print_json(servers)
        return
    newest = max((server.revision for server in servers.items), default=0)
    rows = [
        [server.name, server.role, server.api, f"{server.revision:,}", _state(server, newest), server.version]
        for server in servers.items
    ]
    print_table(HEADER, rows)


@leader.command()
@click.option(
    "--to", "successor", default="", metavar="SERVER", help="The new leader. [default: the first standby to take over]"
)
@json_option
def transfer(successor: str, as_json: bool) -> None:
    """Transfer leadership to another server and wait for it. Running work is not affected.

    Examples:
      roost leader transfer            to any standby
      roost leader transfer --to s2    this one

    Next: `roost leader`; then the old leader can be stopped or upgraded.
    """
    with connect() as client:
        before = client.servers.transfer_leader(successor)
        deadline = time.monotonic() + TRANSFER_S_MAX
        while True:
            servers = client.servers.list()
            now = next((server for server in servers.items if server.role == "leader"), None)
            if now is not None and now.name != before.name:
                break
            if time.monotonic() > deadline:
                raise Failure(f"{before.name} is still the leader", "`roost leader` shows the standbys")
            time.sleep(LOOK_S)
    if as_json:
        print_json(servers)
    else:
        click.echo(f"{now.name} is the leader now; {before.name} is a standby")


def _state(server: ServerView, newest: int) -> str:
    behind = newest - server.revision
    return server.failed or (f"{behind:,} behind" if behind > LAG_SHOWN else "ok")
