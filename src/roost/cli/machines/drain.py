"""roost cordon, uncordon and drain: take a node out of service, and put it back."""

import click

from roost.cli.common.exit_codes import DONE, NOT_PLACED
from roost.cli.common.output import Output, echo_err, print_table
from roost.cli.common.session import client_output
from roost.cli.common.targets import Target
from roost.client import Client
from roost.schema.nodes import DrainPlanView, LeavingView


@click.command()
@click.argument("name", metavar="NODE")
@click.option("--deadline", default=None, metavar="DURATION", help="Time for jobs to finish, like 10m. [default: none]")
@click.option("--dry-run", is_flag=True, help="Only show where each instance would go.")
@client_output
def drain(client: Client, name: str, deadline: str | None, dry_run: bool) -> Output:
    """Drain a node: it takes no new work, and its running work moves elsewhere.

    Examples:
      roost drain node-1 --dry-run          where each instance would go; exit code 4 if one has no place
      roost drain node-1                    move everything away now
      roost drain node-1 --deadline 10m     jobs may finish within ten minutes
      roost uncordon node-1                 back into service

    Next: `roost nodes show NODE` until it is drained; then stop its agent, and `roost nodes remove NODE`.
    """
    if dry_run:
        plan = client.nodes.preview_drain(name, deadline)
        return Output(plan, lambda: _show(plan), DONE if plan.whole else NOT_PLACED)
    node = client.nodes.drain(name, deadline)
    return Output(node, f"node {node.name} is {node.status}")


@click.command()
@click.argument("name", metavar="NODE")
@client_output
def cordon(client: Client, name: str) -> Output:
    """Cordon a node: it takes no new work; running work stays.

    Examples:
      roost cordon node-1          no new work; running work stays
      roost uncordon node-1        take new work again

    Next: `roost drain NODE` to move its work away; `roost nodes` shows cordoned nodes.
    """
    node = client.nodes.cordon(name)
    return Output(node, f"node {node.name} is {node.status}; `roost uncordon {node.name}` puts it back")


@click.command()
@click.argument("name", metavar="NODE")
@client_output
def uncordon(client: Client, name: str) -> Output:
    """Put a cordoned, drained or flaky node back into service.

    Examples:
      roost uncordon node-1

    It ends a cordon or a drain, and clears the flaky mark.

    Next: `roost nodes show NODE`.
    """
    node = client.nodes.resume(name)
    return Output(node, f"node {node.name} is {node.status}")


def _show(plan: DrainPlanView) -> None:
    print_table(("INSTANCE", "NEW NODE", "REASON"), [_row(instance_move) for instance_move in plan.leaving])
    stuck = sum(not instance_move.node and not instance_move.may_finish for instance_move in plan.leaving)
    if not plan.leaving:
        echo_err(f"nothing runs on node {plan.node}")
    elif stuck:
        echo_err(f"{stuck} of {len(plan.leaving)} would have no place; nothing was changed")
    else:
        echo_err("nothing was changed; `roost drain` without --dry-run does it")


def _row(leaving: LeavingView) -> tuple[str, str, str]:
    name = str(Target(leaving.project, leaving.name, leaving.index))
    why = f"by {leaving.strategy}" if leaving.node else f"{leaving.code}: {leaving.message}"
    return name, leaving.node or "nowhere", f"if it has not finished by then; {why}" if leaving.may_finish else why
