"""roost versions, rollback and promote: versions of a workload, and the way back or forward."""

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from roost.cli.common.format import moment
from roost.cli.common.options import json_option, project_option
from roost.cli.common.output import Output, echo_err, listed, print_json, print_table
from roost.cli.common.rollout_progress import follow, seconds, timeout_option, wait_option
from roost.cli.common.session import client_output, connect
from roost.cli.common.targets import TARGET, Target, in_project, whole_workload
from roost.client import Client
from roost.schema.rollouts import VersionView
from roost.schema.work import WorkloadView

HEADER = ("VERSION", "SINCE", "INSTANCES", "UPDATE", "CHANGE")
COLORS = {"+": "green", "-": "red", "@": "cyan"}


@click.command()
@click.argument("target", type=TARGET, metavar="NAME")
@click.argument("version", type=click.IntRange(1), required=False, metavar="[VERSION]")
@wait_option
@timeout_option
@project_option
@json_option
def rollback(target: Target, version: int | None, project: str, **following: Any) -> None:
    """Roll a workload back to an earlier version.

    The rollback is a new version with the same limits as any other. Instances that still run it are not restarted.

    Examples:
      roost rollback web              to the last good version before the current one
      roost rollback web 3 --wait     to version 3, with progress

    Exit code: 0 done, 1 failed, 124 time limit.
    Next: `roost versions NAME --diff` shows the versions and what each changed.
    """
    target = whole_workload(in_project(target, project))
    _change(lambda client: client.workloads.rollback(target.project, target.name, version),
            lambda workload: f"{target}: {workload.change}, which is version {workload.version} now",
            **following)  # fmt: skip


@click.command()
@click.argument("target", type=TARGET, metavar="NAME")
@wait_option
@timeout_option
@project_option
@json_option
def promote(target: Target, project: str, **following: Any) -> None:
    """Promote the canaries: all replicas of a service get the new version.

    An update with `canary: N` pauses after N replicas of the new version. They must be available.

    Examples:
      roost promote web
      roost promote web --wait --timeout 10m

    Exit code: 0 done, 1 failed or rolled back, 124 time limit.
    Next: `roost show NAME` shows its progress, `roost rollback NAME` rolls back instead.
    """
    target = whole_workload(in_project(target, project))
    _change(lambda client: client.workloads.promote(target.project, target.name),
            lambda workload: f"{target}: the other replicas get version {workload.version}",
            **following)  # fmt: skip


def _change(
    change: Callable[[Client], WorkloadView], message: Callable[[WorkloadView], str], *, wait: bool,
    timeout: str | None, as_json: bool,
) -> None:  # fmt: skip
    timeout_s, code = seconds(timeout, wait), 0
    with connect() as client:
        workload = change(client)
        if not as_json:
            echo_err(message(workload))
        if wait:
            code, (status,) = follow(client, [workload], timeout_s)
            workload = status.workload
    if as_json:
        print_json(workload)
    raise click.exceptions.Exit(code)


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
    value = [
        {name: field for name, field in msgspec.structs.asdict(version).items() if name not in hidden}
        for version in found
    ]
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
