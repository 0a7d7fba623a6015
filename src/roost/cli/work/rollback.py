"""roost rollback and promote: return to an earlier version, or give a new one to all replicas."""

from collections.abc import Callable
from typing import Any

import click

from roost.cli.common.output import echo_err, print_json
from roost.cli.common.rollout_progress import follow, seconds, timeout_option, wait_option
from roost.cli.common.session import connect, json_option, project_option
from roost.cli.common.targets import TARGET, Target, in_project, whole_workload
from roost.client import Client
from roost.schema.work import WorkloadView


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
    """Make a change, report it, and with --wait follow it to its end."""
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
