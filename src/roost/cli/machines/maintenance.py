"""roost maintenance: hold everything where it is, and let it go again."""

import click

from roost.cli.common.output import ago, clock, print_json, print_result
from roost.cli.common.session import connect, json_option
from roost.schema.nodes import MaintenanceView


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def maintenance(ctx: click.Context, as_json: bool) -> None:
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
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        answer = client.maintenance.get()
    if as_json:
        print_json(answer)
    else:
        click.echo(message(answer))


@maintenance.command()
@click.option("--reason", required=True, help="Reason, shown for pending work.")
@click.option("--for", "lasting", default=None, metavar="DURATION", help="Duration, like 2h.")
@json_option
def on(reason: str, lasting: str | None, as_json: bool) -> None:
    """Start maintenance: nothing is placed, moved or stopped.

    Examples:
      roost maintenance on --reason "new switches"            until `roost maintenance off`
      roost maintenance on --reason "new switches" --for 2h   with an end

    Repeat the command to change the reason and the end.

    Next: `roost maintenance off`.
    """
    with connect() as client:
        answer = client.maintenance.begin(reason, lasting)
    _tell(answer, as_json)


@maintenance.command()
@json_option
def off(as_json: bool) -> None:
    """End maintenance.

    Examples:
      roost maintenance off

    Every node gets a whole lease to reconnect; then paused work continues.

    Next: `roost nodes`, `roost ps`.
    """
    with connect() as client:
        answer = client.maintenance.end()
    _tell(answer, as_json)


def message(report: MaintenanceView) -> str:
    """Maintenance in one line."""
    if not report.on:
        return "there is no maintenance"
    since = f" since {ago(report.since_ms)}" if report.since_ms else ""
    until = f", until {clock(report.until_ms)}" if report.until_ms else ""
    return f"maintenance{since}{until}: {report.reason}"


def _tell(report: MaintenanceView, as_json: bool) -> None:
    print_result(report, as_json, message(report))
