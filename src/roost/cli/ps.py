"""roost ps: the workloads there are."""

from typing import TYPE_CHECKING

import click

from roost.cli.output import ago, print_json, print_table, say, took
from roost.cli.past import at_option, settle
from roost.cli.session import connect, json_option
from roost.cli.targets import Target

if TYPE_CHECKING:
    from roost.client.types import Workload

STATES = ("queued", "running", "stopping", "succeeded", "failed", "timed_out", "cancelled", "expired", "rejected")
LIVE = ("queued", "running", "stopping")
HEADER = ("NAME", "KIND", "STATE", "INSTANCES", "SUBMITTED", "TOOK")


@click.command(
    epilog="""\b
Examples:
  roost ps                    what waits and runs
  roost ps -a                 with everything that is finished
  roost ps --state failed --json
  roost ps --at 2h            what waited and ran two hours ago
\b
Next: `roost show NAME` for one of them, `roost why NAME` for what waits.
"""
)
@click.option("-a", "--all", "everything", is_flag=True, help="Also what is finished.")
@click.option("-p", "--project", default="", help="Only of this project.")
@click.option("--state", type=click.Choice(STATES), default=None, help="Only in this state.")
@at_option
@json_option
def ps(everything: bool, project: str, state: str | None, at: str, as_json: bool) -> None:
    """List workloads: what waits and runs, and with -a what is finished."""
    with connect() as client:
        states = (state,) if state else ("",) if everything else LIVE
        at = settle(client, at)
        found = [workload for each in states for workload in client.workloads(project=project, state=each, at=at)]
    found.sort(key=lambda workload: workload.submitted_ms, reverse=True)
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(workload) for workload in found])
    if not found and not everything and not at:
        say("nothing waits or runs; `roost ps -a` shows what is finished, `roost run -- echo hello` starts something")


def _row(workload: "Workload") -> tuple[str, ...]:
    name = str(Target(workload.project, workload.name))
    duration = took(workload.submitted_ms, workload.finished_ms) if workload.finished_ms else "-"
    return name, workload.kind, state_words(workload), progress(workload), ago(workload.submitted_ms), duration


def state_words(workload: "Workload") -> str:
    """The state; of a service also how it is: `running 9/10 ready`, `rolling 4/10 to version 3`, `crash loop`."""
    if workload.looping and workload.state in LIVE:
        return f"crash loop {workload.looping}/{workload.count}"
    if workload.ready is None or workload.state != "running":
        return workload.state
    rollout = workload.rollout
    if rollout is not None and rollout.state == "rolling":
        return f"rolling {rollout.done}/{workload.count} to version {workload.version}"
    if rollout is not None and rollout.state == "waiting":
        return f"canary {rollout.done}/{workload.count} of version {workload.version}"
    return "running" if workload.ready >= workload.count else f"running {workload.ready}/{workload.count} ready"


def progress(workload: "Workload") -> str:
    """`1`, or `7 succeeded, 2 running, 1 queued`: most first."""
    if workload.count == 1:
        return "1"
    order = sorted(workload.counts.items(), key=lambda each: -each[1])
    return ", ".join(f"{number} {state}" for state, number in order)
