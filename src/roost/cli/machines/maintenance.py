"""roost maintenance: hold everything where it is, and let it go again."""

import click

from roost.cli.common.format import ago, clock
from roost.cli.common.output import Output
from roost.cli.common.session import client_output, showing_group
from roost.client import Client
from roost.schema.nodes import MaintenanceView


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
    return Output(answer, lambda: click.echo(message(answer)))


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
    return Output(answer, message(answer))


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
    return Output(answer, message(answer))


def message(report: MaintenanceView) -> str:
    if not report.on:
        return "there is no maintenance"
    since = f" since {ago(report.since_ms)}" if report.since_ms else ""
    until = f", until {clock(report.until_ms)}" if report.until_ms else ""
    return f"maintenance{since}{until}: {report.reason}"
