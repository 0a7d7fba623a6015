"""roost status: how the server is doing."""

import click

from roost.cli.maintenance import words
from roost.cli.output import print_json
from roost.cli.session import connect, json_option
from roost.model.units import show_duration


@click.command(
    epilog="""\b
Examples:
  roost status
  roost status --json
\b
Next: `roost nodes` for the machines, `roost ps` for the work.
"""
)
@json_option
def status(as_json: bool) -> None:
    """Say how the server is doing: its nodes and its work, counted."""
    with connect() as client:
        told = client.status()
        url = client.url
    if as_json:
        print_json(told)
        return
    click.echo(f"Server:       {url}, Roost {told.version}, {'ready' if told.ready else 'not ready'}")
    click.echo(f"Revision:     {told.revision}")
    click.echo(f"Strategy:     {told.strategy}; a node is lost after {show_duration(told.lease_ms)} of silence")
    margin = f"has to be {told.preempt_margin} higher" if told.preempt_margin else "is never high enough"
    kept = f"a place is kept for who waits {show_duration(told.patience_ms)}"
    click.echo(f"Queue:        {kept}; to stop what runs a priority {margin}")
    click.echo(f"Agents:       {told.agents_connected} connected")
    if told.controllers:
        click.echo(f"Controllers:  gRPC at {', '.join(told.controllers)}")
    click.echo(f"Nodes:        {_counted(told.nodes)}")
    click.echo(f"Workloads:    {_counted(told.workloads)}")
    click.echo(f"Instances:    {_counted(told.instances)}")
    if told.maintenance.on:
        click.echo(f"Held up:      {words(told.maintenance)}")
    if told.history is not None and told.history.failed:
        click.echo(f"History:      {told.history.failed}")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in counts.items() if number) or "none"
