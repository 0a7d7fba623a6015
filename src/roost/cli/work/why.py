"""roost why: reasons, suggestions, queue position and start estimate; as text or JSON."""

import time

import click

from roost.cli.common.output import print_json, print_table
from roost.cli.common.session import connect, json_option, project_option
from roost.cli.common.targets import TARGET, Target, in_project
from roost.model.spec.units import show_duration
from roost.schema.why import EstimateView, WhyView


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@json_option
def why(target: Target, project: str, as_json: bool) -> None:
    """Explain why an instance is placed or pending, what would help, and when it may start.

    Without an index: the first pending instance, else the first.

    Examples:
      roost why train             why it is pending, or why it is on its node
      roost why train.7           one instance of an array
      roost why train --json

    Next: apply one of the suggestions (each was tried on a copy of the state), or `roost cancel` it.
    """
    target = in_project(target, project)
    with connect() as client:
        answer = client.workloads.why(target.project, target.name, target.index)
    if as_json:
        print_json(answer)
        return
    click.echo(answer.message)
    if answer.blockers:
        click.echo()
        rows = [
            (str(blocker.nodes) if blocker.nodes else "-", blocker.code, blocker.reason) for blocker in answer.blockers
        ]
        print_table(("NODES", "CODE", "REASON"), rows)
    elif answer.candidates:
        click.echo()
        rows = [
            (candidate.node, f"{candidate.score:.3f}", "taken" if at == 0 else "")
            for at, candidate in enumerate(answer.candidates)
        ]
        print_table(("NODE", "SCORE", ""), rows)
    _print_advice(answer)


def _print_advice(answer: WhyView) -> None:
    if answer.contradiction:
        click.echo("\nNo node can ever meet " + ("this:" if len(answer.contradiction) == 1 else "these together:"))
        for need in answer.contradiction:
            click.echo(f"  {need.message} ({need.path}; {need.nodes} node{'s' * (need.nodes != 1)})")
    if answer.suggestions:
        click.echo("\nWhat would start it now, any one of:")
        for suggestion in answer.suggestions:
            click.echo(
                f"  {suggestion.message}"
                + (f" (it would go to {suggestion.node})" if suggestion.kind != "node" else "")
            )
    if answer.position is not None:
        click.echo(f"\nQueue:  {_place(answer.position, answer.queued_before)}")
    if answer.estimate is not None:
        click.echo(f"Start:  {_start(answer.estimate, int(time.time() * 1_000))}")


def _place(position: int, queued_before: list[str]) -> str:
    if position == 1:
        return "it is the next one"
    more = f" and {position - 1 - len(queued_before):,} more" if position - 1 > len(queued_before) else ""
    return f"number {position:,}, after {', '.join(queued_before)}{more}"


def _start(estimate: EstimateView, now_ms: int) -> str:
    if estimate.earliest_ms is None:
        return estimate.message
    earliest = _in(estimate.earliest_ms, now_ms)
    if estimate.likely_ms is None or estimate.latest_ms is None:
        return f"not before {earliest} ({estimate.message})"
    latest = _in(estimate.latest_ms, now_ms)
    return f"likely in {_in(estimate.likely_ms, now_ms)}, between {earliest} and {latest} ({estimate.message})"


def _in(at_ms: int, now_ms: int) -> str:
    return show_duration(max(0, at_ms - now_ms) // 1_000 * 1_000)
