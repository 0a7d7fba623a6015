"""roost why: reasons, suggestions, queue position and start estimate; and short reasons for other commands."""

import click
import msgspec

from roost.cli.common.format import from_now
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, echo_err, print_table, printable
from roost.cli.common.session import client_output
from roost.cli.common.targets import TARGET, Target, in_project
from roost.client import Client
from roost.client.errors import ApiError, Unreachable
from roost.schema.why import EstimateView, WhyView
from roost.schema.work import SubmittedView


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@client_output
def why(client: Client, target: Target, project: str) -> Output:
    """Explain why an instance is placed or pending, what would help, and when it may start.

    Without an index: the first pending instance, else the first.

    Examples:
      roost why train             why it is pending, or why it is on its node
      roost why train.7           one instance of an array
      roost why train --json

    Next: apply one of the suggestions (each was tried on a copy of the state), or `roost cancel` it.
    """
    target = in_project(target, project)
    answer = client.workloads.why(target.project, target.name, target.index)
    return Output(answer, lambda: _show(answer))


def _show(answer: WhyView) -> None:
    click.echo(printable(answer.message))
    if answer.blockers:
        click.echo()
        blockers = [(str(blocker.nodes or "-"), blocker.code, blocker.reason) for blocker in answer.blockers]
        print_table(("NODES", "CODE", "REASON"), blockers)
    elif answer.candidates:
        click.echo()
        scores = [(candidate.node, f"{candidate.score:.3f}") for candidate in answer.candidates]
        print_table(("NODE", "SCORE", ""), [(*row, "" if at else "taken") for at, row in enumerate(scores)])
    if answer.contradiction:
        click.echo("\nNo node can ever meet " + ("this:" if len(answer.contradiction) == 1 else "these together:"))
        for need in answer.contradiction:
            click.echo(f"  {need.message} ({need.path}; {need.nodes} node{'s' * (need.nodes != 1)})")
    if answer.suggestions:
        click.echo("\nWhat would start it now, any one of:")
        for suggestion in answer.suggestions:
            where = f" (it would go to {suggestion.node})" if suggestion.kind != "node" else ""
            click.echo(f"  {suggestion.message}{where}")
    if answer.position is not None and answer.code != UNSATISFIABLE:  # what can never run waits for no other
        others = ", ".join(answer.queued_before)
        rest = answer.position - 1 - len(answer.queued_before)
        more = f" and {rest:,} more" if rest > 0 else ""
        place = f"number {answer.position:,}, after {others}{more}" if answer.position > 1 else "it is the next one"
        click.echo(f"\nQueue:  {place}")
    if answer.estimate is not None:
        click.echo(f"Start:  {_start(answer.estimate)}")
    for note in answer.notes:
        click.echo(f"Note:   {note.workload} {note.message}")


def _start(estimate: EstimateView) -> str:
    if estimate.earliest_ms is None:
        return estimate.message
    earliest = from_now(estimate.earliest_ms)
    if estimate.likely_ms is None or estimate.latest_ms is None:
        return f"not before {earliest} ({estimate.message})"
    likely, latest = from_now(estimate.likely_ms), from_now(estimate.latest_ms)
    band = f", between {earliest} and {latest}" if earliest != latest else ""
    return f"likely in {likely}{band} ({estimate.message})"


# Codes of instances that stay pending until an operator or other work makes room for them.
UNSATISFIABLE = "unsatisfiable"
BLOCKED_CODES = ("no_nodes", "insufficient_resources", "quota_exceeded", UNSATISFIABLE, "maintenance", "needs_approval")
UNKNOWN = "unknown"  # the server did not answer


def explain(client: Client, project: str, name: str) -> WhyView:
    """Why a workload is pending. An explanation that fails ends nothing: its code is `unknown` then."""
    try:
        return client.workloads.why(project, name, advice=False)
    except (ApiError, Unreachable, msgspec.MsgspecError) as error:
        message = f"the reason why {Target(project, name)} is pending is not known now: {error}"
        return WhyView(instance=f"{project}/{name}", state="queued", message=message, code=UNKNOWN)


def pending_reasons(client: Client, project: str, name: str, codes: tuple[str, ...] = BLOCKED_CODES) -> list[str]:
    """Why a workload is pending, if the reason has one of these codes or is not known."""
    why = explain(client, project, name)
    return [why.message] if why.code in (*codes, UNKNOWN) else []


def warn_unenforced(workload: SubmittedView) -> None:
    """Say which limits of a submitted workload only reserve, because no node enforces them."""
    if workload.unenforced:
        names, target = " and ".join(workload.unenforced), Target(workload.project, workload.name)
        echo_err(
            f"{target}: no node that may take it enforces its limit on {names}: it reserves, and nothing is cut off"
        )
