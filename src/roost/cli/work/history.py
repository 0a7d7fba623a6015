"""roost history: finished workloads."""

from typing import Any

import click
import msgspec

from roost.cli.common.as_of import period_options, rfc3339
from roost.cli.common.output import echo_err, moment, print_json, print_table, took
from roost.cli.common.session import connect, json_option
from roost.cli.common.targets import Target
from roost.schema.history import OverView

STATES = ("succeeded", "failed", "timed_out", "cancelled", "expired", "rejected")
HEADER = ("FINISHED", "NAME", "STATE", "INSTANCES", "NODE", "EXIT", "TOOK", "CAUSE")
LIMIT = 50


@click.command()
@click.argument("name", required=False, default="", metavar="[[PROJECT/]NAME]")
@click.option("-p", "--project", default="", help="Only of this project.")
@click.option("--state", type=click.Choice(STATES), default=None, help="Only with this end state.")
@period_options
@click.option("--limit", type=click.IntRange(1, 100_000), default=LIMIT, show_default=True, help="How many at most.")
@json_option
def history(
    name: str, project: str, state: str | None, since: str, until: str, limit: int, as_json: bool
) -> None:  # fmt: skip
    """List finished workloads, newest first, also those that `roost ps -a` no longer has.

    Examples:
      roost history                         the last 50 that finished
      roost history train                   with this name prefix
      roost history --state failed --since 1d
      roost history -p web --since 2026-01-01 --until 2026-02-01 --limit 1000 --json

    Next: `roost show NAME --story` for everything about one, `roost events NAME` for its events,
    `roost versions NAME` for the versions of a live workload.
    """
    given, slash, rest = name.rpartition("/")
    project, name = (given, rest) if slash else (project, name)
    with connect() as client:
        found = client.history.list(
            project=project, name=name, state=state or "", since=since, until=until, limit=limit
        )
    if as_json:
        print_json([_reported(finished) for finished in found])
        return
    print_table(HEADER, [_row(finished) for finished in found])
    if not found:
        echo_err("no finished workloads match; `roost ps` lists pending and running ones")
    elif len(found) == limit:
        echo_err(f"the last {limit}; --limit lists more, --until earlier ones")


def _row(over: OverView) -> tuple[str, ...]:
    counts = sorted(over.counts.items(), key=lambda state: -state[1])
    instances = "1" if over.count == 1 else ", ".join(f"{number} {state}" for state, number in counts)
    single = over.count == 1
    return (
        moment(over.finished_ms),
        str(Target(over.project, over.name)),
        over.state,
        instances,
        over.node if single and over.node else "-",
        str(over.exit_code) if single and over.exit_code is not None else "-",
        took(over.started_ms or over.submitted_ms, over.finished_ms),
        over.message or "-",
    )


def _reported(over: OverView) -> dict[str, Any]:
    answer = msgspec.structs.asdict(over)
    for field in ("submitted", "started", "finished"):
        answer[field] = rfc3339(answer.pop(f"{field}_ms"))
    return answer
