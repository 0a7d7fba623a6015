"""roost promote: the canaries of a change are good, all others follow."""

import click

from roost.cli.output import print_json, say
from roost.cli.rolling import follow, seconds, timeout_option, wait_option
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project


@click.command(
    epilog="""\b
Examples:
  roost promote web
  roost promote web --wait --timeout 10m
\b
Exit code: 0 done, 1 it failed or has gone back, 124 not in time.
Next: `roost show NAME` shows how far it is, `roost rollback NAME` goes back instead.
"""
)
@click.argument("target", type=TARGET, metavar="NAME")
@wait_option
@timeout_option
@project_option
@json_option
@click.pass_context
def promote(
    ctx: click.Context, target: Target, wait: bool, timeout: str | None, project: str, as_json: bool
) -> None:  # fmt: skip
    """Let all replicas of a service follow its canaries.

    An update with `canary: N` stops after N replicas of the new version, which have to be available by then.
    """
    target = in_project(target, project)
    if target.index is not None:
        raise click.UsageError("promote is for a whole workload; leave the index away")
    timeout_s, code = seconds(timeout, wait), 0
    with connect() as client:
        workload = client.promote(target.project, target.name)
        if not as_json:
            say(f"{target}: the others follow to version {workload.version}")
        if wait:
            code, (standing,) = follow(client, [workload], timeout_s)
            workload = standing.workload
    if as_json:
        print_json(workload)
    ctx.exit(code)
