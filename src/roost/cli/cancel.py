"""roost cancel: stop workloads or single instances."""

import click

from roost.cli.output import print_json, say
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project


@click.command(
    epilog="""\b
Examples:
  roost cancel train
  roost cancel train.3 train.4
  roost cancel train && roost wait train      until it has really stopped
\b
Next: `roost show NAME` shows how it ended; `roost retry NAME` runs it again.
"""
)
@click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME[.INDEX]...")
@project_option
@json_option
def cancel(targets: tuple[Target, ...], project: str, as_json: bool) -> None:
    """Stop workloads or single instances.

    What waits is cancelled at once. What runs gets SIGTERM, its grace period, then SIGKILL. What is over stays so.
    """
    done = []
    with connect() as client:
        for target in targets:
            target = in_project(target, project)
            done.append(client.cancel(target.project, target.name, target.index))
            if not as_json:
                say(f"{target} is {_state(done[-1].state)}")
    if as_json:
        print_json(done)


def _state(state: str) -> str:
    return "stopping" if state == "running" else state
