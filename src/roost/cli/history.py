"""roost history: what is over, however long ago, and however often a name was used."""

from typing import TYPE_CHECKING, Any

import click

from roost.cli.output import print_json, print_table, say, took
from roost.cli.past import day_and_time, period_options, rfc3339
from roost.cli.session import connect, json_option
from roost.cli.targets import Target

if TYPE_CHECKING:
    from roost.client.history import Over

STATES = ("succeeded", "failed", "timed_out", "cancelled", "expired", "rejected")
HEADER = ("FINISHED", "NAME", "STATE", "INSTANCES", "NODE", "EXIT", "TOOK", "CAUSE")
LIMIT = 50


@click.command(
    epilog="""\b
Examples:
  roost history                         the last 50 that finished
  roost history train                   everything whose name begins so
  roost history --state failed --since 1d
  roost history -p web --since 2026-01-01 --until 2026-02-01 --limit 1000 --json
\b
Next: `roost show NAME --story` for everything about one, `roost events NAME` for what happened to it.
"""
)
@click.argument("name", required=False, default="", metavar="[[PROJECT/]NAME]")
@click.option("-p", "--project", default="", help="Only of this project.")
@click.option("--state", type=click.Choice(STATES), default=None, help="Only what ended so.")
@period_options
@click.option("--limit", type=click.IntRange(1, 100_000), default=LIMIT, show_default=True, help="How many at most.")
@json_option
def history(name: str, project: str, state: str | None, since: str, until: str, limit: int, as_json: bool) -> None:
    """List workloads that are over, newest first: also those that `roost ps -a` does not know any more."""
    given, slash, rest = name.rpartition("/")
    project, name = (given, rest) if slash else (project, name)
    with connect() as client:
        found = client.history(project=project, name=name, state=state or "", since=since, until=until, limit=limit)
    if as_json:
        print_json([_told(each) for each in found])
        return
    print_table(HEADER, [_row(each) for each in found])
    if not found:
        say("nothing that is over is like this; `roost ps` shows what waits and runs")
    elif len(found) == limit:
        say(f"the last {limit}; --limit shows more, --until what was before")


def _row(over: "Over") -> tuple[str, ...]:
    counts = sorted(over.counts.items(), key=lambda each: -each[1])
    instances = "1" if over.count == 1 else ", ".join(f"{number} {state}" for state, number in counts)
    single = over.count == 1
    return (
        day_and_time(over.finished_ms).partition(".")[0],
        str(Target(over.project, over.name)),
        over.state,
        instances,
        over.node if single and over.node else "-",
        str(over.exit_code) if single and over.exit_code is not None else "-",
        took(over.started_ms or over.submitted_ms, over.finished_ms),
        over.cause or "-",
    )


def _told(over: "Over") -> dict[str, Any]:
    import msgspec  # noqa: PLC0415  (the client has it imported)

    told = msgspec.structs.asdict(over)
    del told["document"], told["needs"]
    for field in ("submitted", "started", "finished"):
        told[field] = rfc3339(told.pop(f"{field}_ms"))
    return told
