"""roost versions: the versions of a workload, and what each changed."""

from typing import Any

import click
import msgspec

from roost.cli.common.as_of import rfc3339
from roost.cli.common.output import moment, print_json, print_table
from roost.cli.common.session import connect, json_option, project_option
from roost.cli.common.targets import TARGET, Target, in_project, whole_workload
from roost.schema.rollouts import VersionView

HEADER = ("VERSION", "SINCE", "INSTANCES", "UPDATE", "CHANGE")
COLORS = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@click.argument("target", type=TARGET, metavar="NAME")
@click.option("--diff", is_flag=True, help="Show what each version changed.")
@project_option
@json_option
def versions(target: Target, diff: bool, project: str, as_json: bool) -> None:
    """List the versions of a workload, newest first.

    Examples:
      roost versions web              newest first; * marks the current version
      roost versions web --diff       with the changes of each document
      roost versions web --json

    Next: `roost rollback NAME [VERSION]` to return to one; `roost history NAME` lists finished workloads.
    """
    target = whole_workload(in_project(target, project))
    with connect() as client:
        found = client.workloads.versions(target.project, target.name, diff=diff)
    if as_json:
        print_json([_reported(version, diff) for version in found])
        return
    if not diff:
        print_table(HEADER, [_row(version) for version in found])
        return
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


def _reported(version: VersionView, diff: bool) -> dict[str, Any]:
    answer = msgspec.structs.asdict(version)
    del answer["document"]  # its environment may be confidential
    if not diff:
        del answer["diff"]
    answer["at"] = rfc3339(answer.pop("at_ms"))
    return answer
