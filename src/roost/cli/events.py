"""roost events: what happened, to whom, when and why."""

from typing import TYPE_CHECKING, Any

import click

from roost.cli.output import print_json, print_json_line, print_table, say
from roost.cli.past import day_and_time, period_options, rfc3339
from roost.cli.session import connect, json_option
from roost.cli.targets import TARGET, Target, in_project
from roost.model.limits import DEFAULT_PROJECT

if TYPE_CHECKING:
    from roost.client.history import Happened

HEADER = ("TIME", "TO", "WHAT", "NODE", "WHO", "WHY")
LIMIT = 100


@click.command(
    epilog="""\b
Examples:
  roost events                          the last 100
  roost events -f                       as it happens
  roost events train.7                  everything that happened to one instance
  roost events --node node-1 --since 1d
  roost events --what lost --json
\b
Next: `roost show NAME --story` for one workload, `roost ps --at TIME` for everything as it was.
"""
)
@click.argument("target", type=TARGET, required=False, metavar="[NAME[.INDEX]]")
@click.option("-f", "--follow", is_flag=True, help="Go on as it happens.")
@click.option("-p", "--project", default="", help="Only of this project.")
@click.option("--node", default="", help="Only on or of this node.")
@click.option("--kind", default="", help="Only to this: instance, workload, node, project, audit, ...")
@click.option("--what", default="", help="Only this: placed, failed, lost, submitted, ...")
@period_options
@click.option("--limit", type=click.IntRange(1, 100_000), default=LIMIT, show_default=True, help="How many at most.")
@json_option
def events(
    target: Target | None, follow: bool, project: str, node: str, kind: str, what: str, since: str, until: str,
    limit: int, as_json: bool,
) -> None:  # fmt: skip
    """Say what happened, oldest first: states of instances, nodes and workloads, settings, and who asked for what."""
    wanted: dict[str, Any] = {"project": project, "node": node, "kind": kind, "what": what}
    if target is not None:
        target = in_project(target, project or DEFAULT_PROJECT)
        wanted |= {"project": target.project, "workload": target.name, "index": target.index}
    if follow and until:
        raise click.UsageError("--until and --follow do not go together")
    with connect() as client:
        found = client.events(**wanted, since=since, until=until, limit=limit) if since or not follow else []
        found.reverse()
        if not follow:
            _print(found, as_json)
            if not found:
                say("nothing like this happened, or it is not kept any more; `roost history` shows what is over")
            return
        for each in found:
            _print_one(each, as_json)
        for each in client.follow_events(**wanted, since=found[-1].id if found else None):
            _print_one(each, as_json)


def _print(found: "list[Happened]", as_json: bool) -> None:
    if as_json:
        print_json([_told(each) for each in found])
    else:
        print_table(HEADER, [_row(each) for each in found])


def _print_one(event: "Happened", as_json: bool) -> None:
    if as_json:
        print_json_line(_told(event))
    else:
        click.echo("  ".join(part for part in _row(event) if part != "-"))


def _row(event: "Happened") -> tuple[str, ...]:
    if event.workload:
        to = str(Target(event.project, event.workload, event.index))
    else:
        to = event.node if event.kind == "node" else event.kind
    node = event.node if event.kind != "node" else ""
    return day_and_time(event.at_ms), to, event.what, node or "-", event.who or "-", event.words or "-"


def _told(event: "Happened") -> dict[str, Any]:
    import msgspec  # noqa: PLC0415  (the client has it imported)

    told = msgspec.structs.asdict(event)
    told["at"] = rfc3339(told.pop("at_ms"))
    return told
