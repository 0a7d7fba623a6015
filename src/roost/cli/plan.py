"""roost plan: what applying a file would do, without doing it."""

from typing import TYPE_CHECKING

import click

from roost.cli.apply import explained_where, read_files
from roost.cli.outcome import WOULD_CHANGE
from roost.cli.output import print_json, print_table
from roost.cli.session import connect, json_option

if TYPE_CHECKING:
    from roost.client.types import Plan


@click.command(
    epilog="""\b
Examples:
  roost plan -f job.yaml
  roost plan -f web.yaml -f db.yaml --json
  generate | roost plan -f -
\b
Next: `roost apply -f FILE --plan TOKEN` does exactly what the plan says, or nothing.
Exit code: 0 nothing would change, 3 something would, 2 the file is wrong.
"""
)
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin.")
@json_option
def plan(files: tuple[str, ...], as_json: bool) -> None:
    """Say what applying a file would do: who goes where, who waits and why, who is stopped for it.

    The scheduler itself decides, on a copy: nothing is changed.
    """
    places = read_files(files)
    with connect() as client, explained_where(places):
        made = client.plan([document for _, document in places])
    if as_json:
        print_json(made)
    else:
        _print(made)
    if made.changes:
        raise click.exceptions.Exit(WOULD_CHANGE)


def _print(made: "Plan") -> None:
    rows = [(each, "create") for each in made.created] + [(each, "new version") for each in made.changed]
    rows += [(each, "unchanged") for each in made.unchanged]
    print_table(("WORKLOAD", "PLAN"), rows)
    if made.placed:
        click.echo()
        print_table(("INSTANCE", "NODE", "STRATEGY", "DEVICES", "PORTS"), [
            (each.instance, each.node, each.strategy, _numbers(each.devices), _numbers(each.ports))
            for each in made.placed
        ])  # fmt: skip
    if made.stopped:
        click.echo()
        print_table(("STOPPED", "NODE", "WHY"), [(each.instance, each.node, each.words) for each in made.stopped])
    if made.pending:
        click.echo()
        waiting = [(each.workload, str(each.count), each.code, each.words) for each in made.pending]
        print_table(("WAITING", "COUNT", "CODE", "WHY"), waiting)
    if made.changes:
        click.echo(f"\nDo exactly this: roost apply --plan {made.token} -f ...", err=True)


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values)) or "-"
