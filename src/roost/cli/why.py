"""roost why: the reasons, what would help, the place in the queue and when it may start; in words or as JSON."""

import time
from typing import TYPE_CHECKING

import click

from roost.cli.output import print_json, print_table
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project
from roost.model.units import show_duration

if TYPE_CHECKING:
    from roost.client.types import Estimate, Why


@click.command(
    epilog="""\b
Examples:
  roost why train             why it waits, or why it is where it is
  roost why train.7           one instance of an array
  roost why train --json
\b
Next: do one of what would help (each was tried on a copy of the cluster), or `roost cancel` it.
"""
)
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@json_option
def why(target: Target, project: str, as_json: bool) -> None:
    """Say why an instance is where it is, or why it waits, what would help and when it may start.

    Without an index: the first instance that waits, or else the first.
    """
    target = in_project(target, project)
    with connect() as client:
        answer = client.why(target.project, target.name, target.index)
    if as_json:
        print_json(answer)
        return
    click.echo(answer.words)
    if answer.blockers:
        click.echo()
        rows = [(str(each.nodes) if each.nodes else "-", each.code, each.reason) for each in answer.blockers]
        print_table(("NODES", "CODE", "REASON"), rows)
    elif answer.candidates:
        click.echo()
        rows = [
            (each.node, f"{each.score:.3f}", "taken" if at == 0 else "") for at, each in enumerate(answer.candidates)
        ]
        print_table(("NODE", "SCORE", ""), rows)
    _print_advice(answer)


def _print_advice(answer: "Why") -> None:
    if answer.contradiction:
        click.echo("\nNo node can ever meet " + ("this:" if len(answer.contradiction) == 1 else "these together:"))
        for need in answer.contradiction:
            click.echo(f"  {need.words} ({need.path}; {need.nodes} node{'s' * (need.nodes != 1)})")
    if answer.suggestions:
        click.echo("\nWhat would start it now, any one of:")
        for each in answer.suggestions:
            click.echo(f"  {each.words}" + (f" (it would go to {each.node})" if each.kind != "node" else ""))
    if answer.position is not None:
        click.echo(f"\nQueue:  {_place(answer.position, answer.ahead)}")
    if answer.estimate is not None:
        click.echo(f"Start:  {_start(answer.estimate, int(time.time() * 1_000))}")


def _place(position: int, ahead: list[str]) -> str:
    if position == 1:
        return "it is the next one"
    more = f" and {position - 1 - len(ahead):,} more" if position - 1 > len(ahead) else ""
    return f"number {position:,}, after {', '.join(ahead)}{more}"


def _start(estimate: "Estimate", now_ms: int) -> str:
    if estimate.earliest_ms is None:
        return estimate.words
    earliest = _in(estimate.earliest_ms, now_ms)
    if estimate.likely_ms is None or estimate.latest_ms is None:
        return f"not before {earliest} ({estimate.words})"
    latest = _in(estimate.latest_ms, now_ms)
    return f"likely in {_in(estimate.likely_ms, now_ms)}, between {earliest} and {latest} ({estimate.words})"


def _in(at_ms: int, now_ms: int) -> str:
    return show_duration(max(0, at_ms - now_ms) // 1_000 * 1_000)
