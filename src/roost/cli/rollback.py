"""roost rollback: back to an earlier version."""

import click

from roost.cli.output import print_json, say
from roost.cli.rolling import follow, seconds, timeout_option, wait_option
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project


@click.command(
    epilog="""\b
Examples:
  roost rollback web              to the last version that was good, and another one than now
  roost rollback web 3 --wait     to version 3, and tell how it goes
\b
Exit code: 0 done, 1 it failed, 124 not in time.
Next: `roost history NAME --diff` shows the versions and what each changed.
"""
)
@click.argument("target", type=TARGET, metavar="NAME")
@click.argument("version", type=click.IntRange(1), required=False, metavar="[VERSION]")
@wait_option
@timeout_option
@project_option
@json_option
@click.pass_context
def rollback(
    ctx: click.Context, target: Target, version: int | None, wait: bool, timeout: str | None, project: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Go back to an earlier version of a workload.

    It becomes a new version, and comes in within the same limits as any other. What still runs it stays as it is.
    """
    target = in_project(target, project)
    if target.index is not None:
        raise click.UsageError("rollback is for a whole workload; leave the index away")
    timeout_s, code = seconds(timeout, wait), 0
    with connect() as client:
        workload = client.rollback(target.project, target.name, version)
        if not as_json:
            say(f"{target}: {workload.change}, which is version {workload.version} now")
        if wait:
            code, (standing,) = follow(client, [workload], timeout_s)
            workload = standing.workload
    if as_json:
        print_json(workload)
    ctx.exit(code)
