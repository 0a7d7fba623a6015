"""roost status: how the server is doing."""

import click

from roost.cli.common.output import Output, print_fields
from roost.cli.common.session import client_output
from roost.cli.machines.maintenance import message
from roost.client import Client
from roost.model.spec.units import show_duration
from roost.model.states import InstanceState, NodeStatus


@click.command()
@client_output
def status(client: Client) -> Output:
    """Show the status of the server: counts of nodes and work.

    Examples:
      roost status
      roost status --json

    Next: `roost nodes` for the machines, `roost ps` for the work.
    """
    answer = client.status()
    preemption = f"from {answer.preempt_margin} priority points" if answer.preempt_margin else "by priority is off"
    backfill = f"backfill reservation after {show_duration(answer.backfill_after_ms)}"
    maintenance = ""
    if answer.maintenance.on:
        maintenance = message(answer.maintenance).removeprefix("maintenance").lstrip(": ")
    fields = {
        "Server": f"{client.url}, Roost {answer.version}, {'ready' if answer.ready else 'not ready'}",
        "Revision": str(answer.revision),
        "Strategy": f"{answer.strategy}; a node is lost after {show_duration(answer.lease_ms)} without a heartbeat",
        "Queue": f"{backfill}; preemption {preemption}",
        "Agents": f"{answer.agents_connected} connected",
        "Controllers": f"gRPC at {', '.join(answer.controllers)}" if answer.controllers else "",
        "Nodes": _counted(answer.nodes),
        "Workloads": _counted(answer.workloads),
        "Instances": _counted(answer.instances),
        "Maintenance": maintenance,
        "History": answer.history.failed if answer.history is not None else "",
    }
    return Output(answer, lambda: print_fields(fields, 14))


def _counted(counts: dict[NodeStatus, int] | dict[InstanceState, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in counts.items() if number) or "none"
