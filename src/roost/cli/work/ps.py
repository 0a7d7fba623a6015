"""roost ps: list workloads."""

import click

from roost.cli.common.as_of import at_option, settle
from roost.cli.common.format import ago, took
from roost.cli.common.options import only_project_option
from roost.cli.common.output import Output, listed
from roost.cli.common.session import client_output
from roost.cli.common.targets import Target
from roost.client import Client
from roost.schema.history import OverView
from roost.schema.work import WorkloadView

STATES = ("queued", "running", "stopping", "succeeded", "failed", "timed_out", "cancelled", "expired", "rejected")
LIVE = ("queued", "running", "stopping")
HEADER = ("NAME", "KIND", "STATE", "INSTANCES", "SUBMITTED", "TOOK")


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Include finished workloads.")
@only_project_option
@click.option("--state", type=click.Choice(STATES), default=None, help="Only in this state.")
@at_option
@client_output
def ps(client: Client, everything: bool, project: str, state: str | None, at: str) -> Output:
    """List pending and running workloads, and with -a finished ones.

    Examples:
      roost ps                    pending and running workloads
      roost ps -a                 with finished workloads
      roost ps --state failed --json
      roost ps --at 2h            the state two hours ago

    Next: `roost show NAME` for details, `roost why NAME` for a pending one.
    """
    states = (state,) if state else ("",) if everything else LIVE
    at = settle(client, at)
    found = [workload for state in states for workload in client.workloads.list(project=project, state=state, at=at)]
    found.sort(key=lambda workload: workload.submitted_ms, reverse=True)
    empty = "no pending or running workloads; `roost ps -a` lists finished ones, `roost run -- echo hello` starts one"
    return listed(found, HEADER, _row, "" if everything or at else empty)


def _row(workload: WorkloadView) -> tuple[str, ...]:
    name = str(Target(workload.project, workload.name))
    duration = took(workload.submitted_ms, workload.finished_ms) if workload.finished_ms else "-"
    return name, workload.kind, format_state(workload), progress(workload), ago(workload.submitted_ms), duration


def format_state(workload: WorkloadView) -> str:
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


def progress(workload: WorkloadView | OverView) -> str:
    """`1`, or `7 succeeded, 2 running, 1 queued`: most first."""
    if workload.count == 1:
        return "1"
    order = sorted(workload.counts.items(), key=lambda state: -state[1])
    return ", ".join(f"{number} {state}" for state, number in order)
