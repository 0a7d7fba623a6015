"""roost history: finished workloads."""

import click

from roost.cli.common.as_of import period_options, with_times
from roost.cli.common.output import Output, echo_err, moment, print_table, took
from roost.cli.common.session import client_output, limit_option, only_project_option
from roost.cli.common.targets import Target
from roost.cli.work.ps import progress
from roost.client import Client
from roost.schema.history import OverView

STATES = ("succeeded", "failed", "timed_out", "cancelled", "expired", "rejected")
HEADER = ("FINISHED", "NAME", "STATE", "INSTANCES", "NODE", "EXIT", "TOOK", "CAUSE")


@click.command()
@click.argument("name", required=False, default="", metavar="[[PROJECT/]NAME]")
@only_project_option
@click.option("--state", type=click.Choice(STATES), default=None, help="Only with this end state.")
@period_options
@limit_option(50, 100_000)
@client_output
def history(
    client: Client, name: str, project: str, state: str | None, since: str, until: str, limit: int
) -> Output:  # fmt: skip
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
    found = client.history.list(project=project, name=name, state=state or "", since=since, until=until, limit=limit)

    def show() -> None:
        print_table(HEADER, [_row(finished) for finished in found])
        if not found:
            echo_err("no finished workloads match; `roost ps` lists pending and running ones")
        elif len(found) == limit:
            echo_err(f"the last {limit}; --limit lists more, --until earlier ones")

    return Output([with_times(finished) for finished in found], show)


def _row(over: OverView) -> tuple[str, ...]:
    name, duration = str(Target(over.project, over.name)), took(over.started_ms or over.submitted_ms, over.finished_ms)
    single = over.count == 1
    node = over.node if single and over.node else "-"
    code = str(over.exit_code) if single and over.exit_code is not None else "-"
    return moment(over.finished_ms), name, over.state, progress(over), node, code, duration, over.message or "-"
