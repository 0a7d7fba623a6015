"""roost versions: the versions of a workload, and what each changed."""

from collections.abc import Sequence

import click

from roost.cli.common.as_of import with_times
from roost.cli.common.output import Output, listed, moment, print_table
from roost.cli.common.session import client_output, project_option
from roost.cli.common.targets import TARGET, Target, in_project, whole_workload
from roost.client import Client
from roost.schema.rollouts import VersionView

HEADER = ("VERSION", "SINCE", "INSTANCES", "UPDATE", "CHANGE")
COLORS = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@click.argument("target", type=TARGET, metavar="NAME")
@click.option("--diff", is_flag=True, help="Show what each version changed.")
@project_option
@client_output
def versions(client: Client, target: Target, diff: bool, project: str) -> Output:
    """List the versions of a workload, newest first.

    Examples:
      roost versions web              newest first; * marks the current version
      roost versions web --diff       with the changes of each document
      roost versions web --json

    Next: `roost rollback NAME [VERSION]` to return to one; `roost history NAME` lists finished workloads.
    """
    target = whole_workload(in_project(target, project))
    found = client.workloads.versions(target.project, target.name, diff=diff)
    hidden = ("document",) if diff else ("document", "diff")  # the environment of a document may be confidential
    value = [with_times(version, *hidden) for version in found]
    return Output(value, lambda: _show_diffs(found)) if diff else listed(found, HEADER, _row, value=value)


def _show_diffs(found: Sequence[VersionView]) -> None:
    for number, version in enumerate(found):
        if number:
            click.echo()
        print_table(HEADER, [_row(version)])
        for line in version.diff[2:]:  # the table has the two versions
            click.echo(click.style(line, fg=COLORS.get(line[:1])))


def _row(version: VersionView) -> tuple[str, ...]:
    mark = "*" if version.present else ""
    update = version.rollout.state if version.rollout is not None else "-"
    if not version.present and update in ("rolling", "waiting"):
        update = "superseded"
    return f"{version.version}{mark}", moment(version.at_ms), str(version.instances), update, version.change
