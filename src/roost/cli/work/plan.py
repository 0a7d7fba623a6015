"""roost plan: what applying a file would do, without doing it."""

import click

from roost.cli.common.exit_codes import WOULD_CHANGE
from roost.cli.common.output import print_json, print_table
from roost.cli.common.session import connect, json_option
from roost.cli.work.apply import explained_where, read_files
from roost.schema.plans import PlanView


@click.command()
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin.")
@json_option
def plan(files: tuple[str, ...], as_json: bool) -> None:
    """Show what applying a file would do: placements, pending instances and why, preemptions.

    The scheduler decides on a copy of the state. Nothing changes.

    Examples:
      roost plan -f job.yaml
      roost plan -f web.yaml -f db.yaml --json
      generate | roost plan -f -

    Next: `roost apply -f FILE --plan TOKEN` does exactly what the plan says, or nothing.
    Exit code: 0 nothing would change, 3 something would, 2 the file is invalid.
    """
    places = read_files(files)
    with connect() as client, explained_where(places):
        made = client.workloads.plan([document for _, document in places])
    if as_json:
        print_json(made)
    else:
        _print(made)
    if made.changes:
        raise click.exceptions.Exit(WOULD_CHANGE)


def _print(made: PlanView) -> None:
    rows = [(name, "create") for name in made.created] + [(name, "new version") for name in made.changed]
    rows += [(name, "unchanged") for name in made.unchanged]
    print_table(("WORKLOAD", "PLAN"), rows)
    if made.placed:
        click.echo()
        print_table(("INSTANCE", "NODE", "STRATEGY", "DEVICES", "PORTS"), [
            (placing.instance, placing.node, placing.strategy, _numbers(placing.devices), _numbers(placing.ports))
            for placing in made.placed
        ])  # fmt: skip
    if made.stopped:
        click.echo()
        print_table(
            ("STOPPED", "NODE", "REASON"),
            [(stopping.instance, stopping.node, stopping.message) for stopping in made.stopped],
        )
    if made.pending:
        click.echo()
        pending = [(entry.workload, str(entry.count), entry.code, entry.message) for entry in made.pending]
        print_table(("PENDING", "COUNT", "CODE", "REASON"), pending)
    if made.changes:
        click.echo(f"\nApply exactly this plan: roost apply --plan {made.token} -f ...", err=True)


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values)) or "-"
