"""roost status, leader and maintenance: the servers, the leader, and a pause of all placement."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.common.format import ago, clock
from roost.cli.common.output import Output, listed, print_fields
from roost.cli.common.session import client_output, showing_group
from roost.client import Client
from roost.model.spec.units import show_duration
from roost.schema.nodes import MaintenanceView
from roost.schema.servers import HistoryStatus, ServerView

TRANSFER_S_MAX = 15.0
LOOK_S = 0.05
HEADER = ("SERVER", "ROLE", "API", "REVISION", "STATE", "VERSION")
LAG_SHOWN = 100  # a standby that is behind by fewer revisions is ok


@click.command()
@client_output
def status(client: Client) -> Output:
    """Show the status of the server: counts of nodes and work.

    Examples:
      roost status
      roost status --json

    Next: `roost nodes` for the machines, `roost ps` for the work.
    """
    answer = client.status()
    preemption = f"from {answer.preempt_margin} priority points" if answer.preempt_margin else "by priority is off"
    backfill = f"backfill reservation after {show_duration(answer.backfill_after_ms)}"
    pause = maintenance_text(answer.maintenance).removeprefix("maintenance").lstrip(": ")
    fields = {
        "Server": f"{client.url}, Roost {answer.version}, {'ready' if answer.ready else 'not ready'}",
        "Revision": str(answer.revision),
        "Strategy": f"{answer.strategy}; a node is lost after {show_duration(answer.lease_ms)} without a heartbeat",
        "Queue": f"{backfill}; preemption {preemption}",
        "Agents": f"{answer.agents_connected} connected",
        "Controllers": f"gRPC at {', '.join(answer.controllers)}" if answer.controllers else "",
        "Nodes": _counted(answer.nodes),
        "Workloads": _counted(answer.workloads),
        "Instances": _counted(answer.instances),
        "Maintenance": pause if answer.maintenance.on else "",
        "History": _history(answer.history) if answer.history is not None else "",
    }
    return Output(answer, lambda: print_fields(fields, 14))


def _history(history: HistoryStatus) -> str:
    return history.failed or ("each server has its own; give all servers the same --blobs" if history.is_apart else "")


def _counted(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in counts.items() if number) or "none"


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

    Next: `roost doctor` checks all servers.
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


@leader.command("revoke-certificates")
@client_output
def revoke_certificates(client: Client) -> Output:
    """Revoke the certificates of all servers, because the key of one may have leaked.

    Running servers issue new ones within a second, and agents reconnect. A stopped server gets its new one at its next
    start. Work is not affected. Clients of the API do not learn of it.

    Examples:
      roost leader revoke-certificates

    Next: `roost leader` lists all servers; `roost audit` has the entry.
    """
    answer = client.servers.revoke_certificates()
    text = f"certificates of servers are valid from series {answer.series} on; all earlier ones are revoked"
    return Output(answer, partial(click.echo, text))


@showing_group
@client_output
def maintenance(client: Client) -> Output:
    """Show, start or end maintenance.

    Examples:
      roost maintenance
      roost maintenance on --reason "new switches" --for 2h
      roost maintenance off

    During maintenance nothing is placed, moved or updated, and silent nodes are suspect, not lost.
    Reports of agents are processed, and new work may be submitted: it is pending. A disconnected agent still
    stops fenced work when its lease ends; it restarts afterwards.

    Next: `roost status`, `roost why NAME`.
    """
    answer = client.maintenance.get()
    return Output(answer, lambda: click.echo(maintenance_text(answer)))


@maintenance.command()
@click.option("--reason", required=True, help="Reason, shown for pending work.")
@click.option("--for", "lasting", default=None, metavar="DURATION", help="Duration, like 2h.")
@client_output
def on(client: Client, reason: str, lasting: str | None) -> Output:
    """Start maintenance: nothing is placed, moved or stopped.

    Examples:
      roost maintenance on --reason "new switches"            until `roost maintenance off`
      roost maintenance on --reason "new switches" --for 2h   with an end

    Repeat the command to change the reason and the end.

    Next: `roost maintenance off`.
    """
    answer = client.maintenance.begin(reason, lasting)
    return Output(answer, maintenance_text(answer))


@maintenance.command()
@client_output
def off(client: Client) -> Output:
    """End maintenance.

    Examples:
      roost maintenance off

    Every node gets a whole lease to reconnect; then paused work continues.

    Next: `roost nodes`, `roost ps`.
    """
    answer = client.maintenance.end()
    return Output(answer, maintenance_text(answer))


def maintenance_text(report: MaintenanceView) -> str:
    if not report.on:
        return "there is no maintenance"
    since = f" since {ago(report.since_ms)}" if report.since_ms else ""
    until = f", until {clock(report.until_ms)}" if report.until_ms else ""
    return f"maintenance{since}{until}: {report.reason}"
