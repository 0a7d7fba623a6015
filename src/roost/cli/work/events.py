"""roost events: the history of transitions and requests."""

from itertools import chain
from typing import Any

import click

from roost.cli.common.as_of import day_and_time, period_options, with_times
from roost.cli.common.output import echo_err, print_json, print_json_line, print_table
from roost.cli.common.session import connect, json_option, limit_option, only_project_option
from roost.cli.common.targets import TARGET, Target, in_project
from roost.model.limits import DEFAULT_PROJECT
from roost.schema.history import EventView

HEADER = ("TIME", "OBJECT", "EVENT", "NODE", "PRINCIPAL", "REASON")


@click.command()
@click.argument("target", type=TARGET, required=False, metavar="[NAME[.INDEX]]")
@click.option("-f", "--follow", is_flag=True, help="Follow new events.")
@only_project_option
@click.option("--node", default="", help="Only of this node.")
@click.option("--kind", default="", help="Only this kind: instance, workload, node, project, audit, ...")
@click.option("--what", default="", help="Only this event: placed, failed, lost, submitted, ...")
@period_options
@limit_option(100, 100_000)
@json_option
def events(
    target: Target | None, follow: bool, since: str, until: str, limit: int, as_json: bool, **wanted: Any
) -> None:
    """List events, oldest first: transitions of instances, nodes and workloads, settings, and requests by principal.

    Examples:
      roost events                          the last 100
      roost events -f                       follow new events
      roost events train.7                  all events of one instance
      roost events --node node-1 --since 1d
      roost events --what lost --json

    Next: `roost show NAME --story` for one workload, `roost ps --at TIME` for a past state.
    """
    if target is not None:
        target = in_project(target, wanted["project"] or DEFAULT_PROJECT)
        wanted |= {"project": target.project, "workload": target.name, "index": target.index}
    if follow and until:
        raise click.UsageError("--until and --follow do not go together")
    with connect() as client:
        found = client.events.list(**wanted, since=since, until=until, limit=limit) if since or not follow else []
        found.reverse()
        if follow:
            for event in chain(found, client.events.follow(**wanted, since=found[-1].id if found else None)):
                if as_json:
                    print_json_line(with_times(event))
                else:
                    click.echo("  ".join(part for part in _row(event) if part != "-"))
            return
    if as_json:
        print_json([with_times(event) for event in found])
    else:
        print_table(HEADER, [_row(event) for event in found])
    if not found:
        echo_err("no event matches, or it was deleted; `roost history` shows finished workloads")


def _row(event: EventView) -> tuple[str, ...]:
    if event.workload:
        to = str(Target(event.project, event.workload, event.index))
    else:
        to = event.node if event.kind == "node" else event.kind
    node = event.node if event.kind != "node" else ""
    return day_and_time(event.at_ms), to, event.what, node or "-", event.who or "-", event.message or "-"
