"""roost drain: take a node out of service, or put it back."""

import click

from roost.cli.output import print_json, say
from roost.cli.session import connect, json_option


@click.command(
    epilog="""\b
Examples:
  roost drain node-1                    move everything away now
  roost drain node-1 --deadline 10m     jobs may finish for ten minutes, services move at once
  roost drain node-1 --resume           back into service
\b
Next: `roost nodes show NODE` until it is drained; then stop its agent, and `roost nodes remove NODE`.
"""
)
@click.argument("name", metavar="NODE")
@click.option(
    "--deadline", default=None, metavar="DURATION", help="How long jobs may go on, like 10m. [default: not at all]"
)
@click.option("--resume", is_flag=True, help="Put it back into service.")
@json_option
def drain(name: str, deadline: str | None, resume: bool, as_json: bool) -> None:
    """Take a node out of service: no new work goes there, and what runs there moves elsewhere."""
    if resume and deadline:
        raise click.UsageError("--resume and --deadline do not go together")
    with connect() as client:
        node = client.resume(name) if resume else client.drain(name, deadline)
    if as_json:
        print_json(node)
    else:
        say(f"node {node.name} is {node.status}")
