"""roost drain: take a node out of service, wait until its work has left, or show where it would go."""

import time

import click

from roost.cli.common.exit_codes import DONE, FAILED, NOT_PLACED
from roost.cli.common.format import clock, took
from roost.cli.common.output import Output, echo_err, print_table
from roost.cli.common.session import client_output
from roost.cli.common.targets import NODE, Target
from roost.client import Client
from roost.schema.nodes import DrainPlanView, LeavingView, NodeDetail, NodeView
from roost.schema.work import InstanceView

POLL_S = 1.0  # a drain takes seconds to hours
NAMED_MAX = 5  # instances named in a line of progress; the rest is counted


@click.command()
@click.argument("name", type=NODE, metavar="NODE")
@click.option("--deadline", default=None, metavar="DURATION", help="Move jobs that still run then, like 10m.")
@click.option("--now", is_flag=True, help="Move jobs at once: they start again elsewhere.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the node is drained.")
@click.option("--dry-run", is_flag=True, help="Only show where each instance would go.")
@client_output
def drain(client: Client, name: str, deadline: str | None, now: bool, no_wait: bool, dry_run: bool) -> Output:
    """Drain a node: it takes no new work, its jobs may finish, and its services move elsewhere.

    Waits until nothing runs there, and prints what is left. Ctrl-C ends the waiting, not the drain.

    Examples:
      roost drain node-1 --dry-run          where each instance would go; exit code 4 if one has no place
      roost drain node-1                    jobs finish, services move; waits
      roost drain node-1 --deadline 10m     jobs that still run in ten minutes are moved
      roost drain node-1 --now              jobs are stopped and start again elsewhere
      roost uncordon node-1                 back into service

    Next: stop its agent, and `roost nodes remove NODE`; or `roost uncordon NODE`.
    """
    if now and deadline is not None:
        raise click.UsageError("give --now or --deadline, not both")
    limit = "0" if now else deadline
    if dry_run:
        plan = client.nodes.preview_drain(name, limit)
        return Output(plan, lambda: _show_plan(plan, deadline), DONE if plan.whole else NOT_PLACED)
    node: NodeView = client.nodes.drain(name, limit)
    if not no_wait:
        node = _wait(client, name)
    is_done = no_wait or node.status in ("drained", "stopped")
    return Output(node, f"node {node.name} is {node.status}", DONE if is_done else FAILED)


def _wait(client: Client, name: str) -> NodeDetail:
    """Until the node is drained, lost, or back in service. What is left is printed when it changes."""
    printed = ""
    while True:
        node = client.nodes.get(name)
        if not node.draining or node.status not in ("draining", "suspect"):
            return node
        left = ", ".join(f"{_name(instance)} {instance.state}" for instance in node.instances[:NAMED_MAX])
        if left != printed:
            printed = left
            echo_err(f"node {name} is {node.status}{_until(node)}; {_left(node)}")
        try:
            time.sleep(POLL_S)
        except KeyboardInterrupt:
            echo_err(f"the drain goes on; `roost uncordon {name}` ends it")
            raise


def _left(node: NodeDetail) -> str:
    """`2 instances left: build.0 running for 4m10s, web.1 stopping`"""
    named = [_progress(instance) for instance in node.instances[:NAMED_MAX]]
    more = node.running - len(named)
    named += [f"{more} more"] if more > 0 else []
    return f"{node.running} instance{'s' * (node.running != 1)} left: {', '.join(named)}"


def _progress(instance: InstanceView) -> str:
    since = f" for {took(instance.started_ms, None)}" if instance.state == "running" else ""
    stays = ", a vm that stays (`move`)" if instance.power is not None else ""
    return f"{_name(instance)} {instance.state}{since}{stays}"


def _until(node: NodeView) -> str:
    return f" until {clock(node.drain_until_ms)}" if node.drain_until_ms else ""


def _name(instance: InstanceView | LeavingView) -> str:
    return str(Target(instance.project, instance.name, instance.index))


def _show_plan(plan: DrainPlanView, deadline: str | None) -> None:
    rows = [_leaving_row(instance_move, deadline) for instance_move in plan.leaving]
    print_table(("INSTANCE", "NEW NODE", "REASON"), rows)
    stuck = sum(not instance_move.node and not instance_move.may_finish for instance_move in plan.leaving)
    if not plan.leaving:
        echo_err(f"nothing runs on node {plan.node}")
    elif stuck:
        echo_err(f"{stuck} of {len(plan.leaving)} would have no place; nothing was changed")
    else:
        echo_err("nothing was changed; `roost drain` without --dry-run does it")


def _leaving_row(leaving: LeavingView, deadline: str | None) -> tuple[str, str, str]:
    why = f"by {leaving.strategy}" if leaving.node else f"{leaving.code}: {leaving.message}"
    if leaving.may_finish and deadline is None:
        return _name(leaving), "-", "it may finish; without a deadline nothing moves it"
    why = f"if it has not finished by then; {why}" if leaving.may_finish else why
    return _name(leaving), leaving.node or "nowhere", why
