"""roost retry: run again what ended otherwise than well."""

import click

from roost.cli.output import print_json, say
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project


@click.command(
    epilog="""\b
Examples:
  roost retry train           all instances that did not succeed
  roost retry train.3         this one, however it ended
  roost retry train --failed  only what failed or ran out of time, not what was cancelled
  roost retry train && roost wait train
\b
Next: `roost logs -f NAME` follows the new attempt.
"""
)
@click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME[.INDEX]...")
@click.option("--failed", is_flag=True, help="Only what failed or ran out of time.")
@project_option
@json_option
def retry(targets: tuple[Target, ...], failed: bool, project: str, as_json: bool) -> None:
    """Run again what failed, was cancelled or timed out; an instance that is named runs again however it ended."""
    done = []
    with connect() as client:
        for target in targets:
            target = in_project(target, project)
            done.append(client.retry(target.project, target.name, target.index, failed=failed))
            if not as_json:
                say(f"{target} waits for its next attempt")
    if as_json:
        print_json(done)
