"""roost plan: what applying a file would do, without doing it."""

import click

from roost.cli.common.exit_codes import DONE, WOULD_CHANGE
from roost.cli.common.output import Output, print_table
from roost.cli.common.session import connect, json_output
from roost.cli.work.apply import explained_where, read_files
from roost.schema.plans import PlanView


@click.command()
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin.")
@json_output
def plan(files: tuple[str, ...]) -> Output:
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
    return Output(made, lambda: _print(made), WOULD_CHANGE if made.changes else DONE)


def _print(made: PlanView) -> None:
    plans = {"create": made.created, "new version": made.changed, "unchanged": made.unchanged}
    print_table(("WORKLOAD", "PLAN"), [(name, plan) for plan, names in plans.items() for name in names])
    tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {
        ("INSTANCE", "NODE", "STRATEGY", "DEVICES", "PORTS"): [
            (placing.instance, placing.node, placing.strategy, _numbers(placing.devices), _numbers(placing.ports))
            for placing in made.placed
        ],
        ("STOPPED", "NODE", "REASON"): [(stop.instance, stop.node, stop.message) for stop in made.stopped],
        ("PENDING", "COUNT", "CODE", "REASON"): [
            (entry.workload, str(entry.count), entry.code, entry.message) for entry in made.pending
        ],
    }
    for header, rows in tables.items():
        if rows:
            click.echo()
            print_table(header, rows)
    if made.changes:
        click.echo(f"\nApply exactly this plan: roost apply --plan {made.token} -f ...", err=True)


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values)) or "-"
