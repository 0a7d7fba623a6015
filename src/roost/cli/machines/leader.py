"""roost leader: show the leader and the standbys, transfer leadership."""

import time
from functools import partial

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output, showing_group
from roost.client import Client
from roost.schema.servers import ServerView

TRANSFER_S_MAX = 15.0
LOOK_S = 0.05
HEADER = ("SERVER", "ROLE", "API", "REVISION", "STATE", "VERSION")
LAG_SHOWN = 100  # a standby that is behind by fewer revisions is ok


@showing_group
@client_output
def leader(client: Client) -> Output:
    """Show the leader and the standbys.

    Of several servers on one store (PostgreSQL or etcd) one is the leader. The standbys follow it, answer reads,
    forward writes, and take over within seconds when it fails.

    Examples:
      roost leader                     the leader and the standbys
      roost leader transfer            transfer leadership, for example before an upgrade
      roost leader transfer --to s2

    Next: `roost doctor` checks all servers; docs/guides/high-availability.md explains failures.
    """
    servers = client.servers.list()
    newest = max((server.revision for server in servers.items), default=0)

    def row(server: ServerView) -> tuple[str, ...]:
        behind = newest - server.revision
        state = server.failed or (f"{behind:,} behind" if behind > LAG_SHOWN else "ok")
        return server.name, server.role, server.api, f"{server.revision:,}", state, server.version

    return listed(servers.items, HEADER, row, value=servers)


@leader.command()
@click.option(
    "--to", "successor", default="", metavar="SERVER", help="The new leader. [default: the first standby to take over]"
)
@client_output
def transfer(client: Client, successor: str) -> Output:
    """Transfer leadership to another server and wait for it. Running work is not affected.

    Examples:
      roost leader transfer            to any standby
      roost leader transfer --to s2    this one

    Next: `roost leader`; then the old leader can be stopped or upgraded.
    """
    before = client.servers.transfer_leader(successor)
    deadline = time.monotonic() + TRANSFER_S_MAX
    while True:
        servers = client.servers.list()
        now = next((server.name for server in servers.items if server.role == "leader"), before.name)
        if now != before.name:
            return Output(servers, partial(click.echo, f"{now} is the leader now; {before.name} is a standby"))
        if time.monotonic() > deadline:
            raise Failure(f"{before.name} is still the leader", "`roost leader` shows the standbys")
        time.sleep(LOOK_S)
