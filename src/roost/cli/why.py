"""roost why: the reasons, in words and as a table."""

import click

from roost.cli.output import print_json, print_table
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project


@click.command(
    epilog="""\b
Examples:
  roost why train             why it waits, or why it is where it is
  roost why train.7           one instance of an array
  roost why train --json
\b
Next: give it what it lacks (`roost agent` adds a node), change the workload and apply it again, or `roost cancel` it.
"""
)
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@json_option
def why(target: Target, project: str, as_json: bool) -> None:
    """Say why an instance is where it is, or why it waits.

    Without an index: the first instance that waits, or else the first.
    """
    target = in_project(target, project)
    with connect() as client:
        answer = client.why(target.project, target.name, target.index)
    if as_json:
        print_json(answer)
        return
    click.echo(answer.words)
    if answer.blockers:
        click.echo()
        print_table(("NODES", "REASON"), [(str(each.nodes), each.reason) for each in answer.blockers])
    elif answer.candidates:
        click.echo()
        rows = [
            (each.node, f"{each.score:.3f}", "taken" if at == 0 else "") for at, each in enumerate(answer.candidates)
        ]
        print_table(("NODE", "SCORE", ""), rows)
