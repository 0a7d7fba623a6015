"""roost drain: take a node out of service, or say where everything there would go."""

from typing import TYPE_CHECKING

import click

from roost.cli.outcome import NOT_PLACED
from roost.cli.output import print_json, print_table, say
from roost.cli.session import connect, json_option
from roost.cli.targets import Target

if TYPE_CHECKING:
    from roost.client.operators import DrainPlan, Leaving


@click.command(
    epilog="""\b
Examples:
  roost drain node-1 --dry-run          where everything there would go; exit code 4 if something has no place
  roost drain node-1                    move everything away now
  roost drain node-1 --deadline 10m     jobs may finish for ten minutes, services move at once
  roost drain node-1 --resume           back into service, as `roost resume node-1`
\b
Next: `roost nodes show NODE` until it is drained; then stop its agent, and `roost nodes remove NODE`.
"""
)
@click.argument("name", metavar="NODE")
@click.option(
    "--deadline", default=None, metavar="DURATION", help="How long jobs may go on, like 10m. [default: not at all]"
)
@click.option("--dry-run", is_flag=True, help="Only say where everything would go.")
@click.option("--resume", is_flag=True, help="Put it back into service.")
@json_option
def drain(name: str, deadline: str | None, dry_run: bool, resume: bool, as_json: bool) -> None:
    """Take a node out of service: no new work goes there, and what runs there moves elsewhere."""
    if resume and (deadline or dry_run):
        raise click.UsageError("--resume goes with neither --deadline nor --dry-run")
    with connect() as client:
        if dry_run:
            _show(client.plan_drain(name, deadline), as_json)
            return
        node = client.resume(name) if resume else client.drain(name, deadline)
    if as_json:
        print_json(node)
    else:
        say(f"node {node.name} is {node.status}")


def _show(plan: "DrainPlan", as_json: bool) -> None:
    if as_json:
        print_json(plan)
    else:
        print_table(("INSTANCE", "GOES TO", "WHY"), [_row(each) for each in plan.leaving])
        stuck = sum(not each.node and not each.may_finish for each in plan.leaving)
        if not plan.leaving:
            say(f"nothing runs on node {plan.node}")
        elif stuck:
            say(f"{stuck} of {len(plan.leaving)} would have no place; nothing was changed")
        else:
            say("nothing was changed; `roost drain` without --dry-run does it")
    if not plan.whole:
        raise click.exceptions.Exit(NOT_PLACED)


def _row(leaving: "Leaving") -> tuple[str, str, str]:
    name = str(Target(leaving.project, leaving.name, leaving.index))
    why = f"by {leaving.strategy}" if leaving.node else f"{leaving.code}: {leaving.words}"
    return name, leaving.node or "nowhere", f"if it has not finished by then; {why}" if leaving.may_finish else why
