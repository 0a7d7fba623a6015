"""roost history: what is over, however long ago; and the versions of what lives, with what each changed."""

from typing import TYPE_CHECKING, Any

import click

from roost.cli.output import print_json, print_table, say, took
from roost.cli.past import day_and_time, period_options, rfc3339
from roost.cli.session import connect, json_option
from roost.cli.targets import Target, usual_project
from roost.cli.versions import print_versions, was_changed

if TYPE_CHECKING:
    from roost.client import Client
    from roost.client.history import Over

STATES = ("succeeded", "failed", "timed_out", "cancelled", "expired", "rejected")
HEADER = ("FINISHED", "NAME", "STATE", "INSTANCES", "NODE", "EXIT", "TOOK", "CAUSE")
LIMIT = 50


@click.command(
    epilog="""\b
Examples:
  roost history                         the last 50 that finished
  roost history train                   everything whose name begins so
  roost history web --diff              the versions of a workload that lives, and what each changed
  roost history web --versions --json
  roost history --state failed --since 1d
  roost history -p web --since 2026-01-01 --until 2026-02-01 --limit 1000 --json
\b
Next: `roost show NAME --story` for everything about one, `roost events NAME` for what happened to it,
`roost rollback NAME VERSION` to go back.
"""
)
@click.argument("name", required=False, default="", metavar="[[PROJECT/]NAME]")
@click.option("-p", "--project", default="", help="Only of this project.")
@click.option("--state", type=click.Choice(STATES), default=None, help="Only what ended so.")
@period_options
@click.option("--versions", "versions", is_flag=True, help="Only the versions of the workload of this name that lives.")
@click.option("--diff", "diff", is_flag=True, help="The same, and what each of them changed.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=LIMIT, show_default=True, help="How many at most.")
@json_option
def history(
    name: str, project: str, state: str | None, since: str, until: str, versions: bool, diff: bool, limit: int,
    as_json: bool,
) -> None:  # fmt: skip
    """List workloads that are over, newest first: also those that `roost ps -a` does not know any more.

    With the NAME of a workload that lives and was changed, its versions come first.
    """
    given, slash, rest = name.rpartition("/")
    project, name = (given, rest) if slash else (project, name)
    if (versions or diff) and not name:
        raise click.UsageError("--versions and --diff are about one workload; give its NAME")
    with connect() as client:
        if versions or diff:
            print_versions(client, usual_project(project), name, diff, as_json)
            return
        if name and not as_json and not (state or since or until):
            _print_changed(client, usual_project(project), name)
        found = client.history(project=project, name=name, state=state or "", since=since, until=until, limit=limit)
    if as_json:
        print_json([_told(each) for each in found])
        return
    print_table(HEADER, [_row(each) for each in found])
    if not found:
        say("nothing that is over is like this; `roost ps` shows what waits and runs")
    elif len(found) == limit:
        say(f"the last {limit}; --limit shows more, --until what was before")


def _print_changed(client: "Client", project: str, name: str) -> None:
    """The versions of a workload of just this name, if it is there and was ever changed."""
    if was_changed(client, project, name):
        print_versions(client, project, name, diff=False, as_json=False)
        click.echo()


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
