"""roost cordon: keep new work from a node. roost resume: put one back into service."""

import click

from roost.cli.output import print_json, say
from roost.cli.session import connect, json_option


@click.command(
    epilog="""\b
Examples:
  roost cordon node-1          what runs there stays, nothing new comes
  roost resume node-1          new work may come again
\b
Next: `roost drain NODE` to move away what runs there, too; `roost nodes` shows which nodes are cordoned.
"""
)
@click.argument("name", metavar="NODE")
@json_option
def cordon(name: str, as_json: bool) -> None:
    """Keep new work from a node; what runs there stays."""
    with connect() as client:
        node = client.cordon(name)
    if as_json:
        print_json(node)
    else:
        say(f"node {node.name} is {node.status}; `roost resume {node.name}` ends it")


@click.command(
    epilog="""\b
Examples:
  roost resume node-1
\b
It ends a cordon and a drain, and forgets that runs failed there: a node that is flaky is used like the others again.
\b
Next: `roost nodes show NODE`.
"""
)
@click.argument("name", metavar="NODE")
@json_option
def resume(name: str, as_json: bool) -> None:
    """Put a node back into service: one that is cordoned, drains, or is avoided because runs failed there."""
    with connect() as client:
        node = client.resume(name)
    if as_json:
        print_json(node)
    else:
        say(f"node {node.name} is {node.status}")
