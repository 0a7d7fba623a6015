"""roost logs: what instances wrote, byte for byte."""

import sys
from typing import TYPE_CHECKING

import click

from roost.cli.output import say
from roost.cli.session import connect, json_option, project_option
from roost.cli.targets import TARGET, Target, in_project, instances_of

if TYPE_CHECKING:
    from roost.client import Client


@click.command(
    epilog="""\b
Examples:
  roost logs train              what it has written so far
  roost logs -f train           go on until it is over
  roost logs train.7 --attempt 1 > first.log
\b
Next: `roost show NAME` tells how it ended, `roost why NAME` why nothing was written yet.
"""
)
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@click.option("-f", "--follow", is_flag=True, help="Go on until it is over.")
@click.option("--attempt", type=click.IntRange(min=0), default=0, help="Which attempt. [default: the newest]")
@project_option
@json_option
def logs(target: Target, follow: bool, attempt: int, project: str, as_json: bool) -> None:
    """Print what instances wrote: bytes as they are.

    Several instances come one after the other under a heading; with -f side by side, each line with its instance in
    front. With --json there is one line for each piece, its bytes in base64.
    """
    target = in_project(target, project)
    with connect() as client:
        targets = instances_of(client, target)
        if follow:
            from roost.cli.following import JsonSink, PrefixSink, Sink, follow_all  # noqa: PLC0415

            kind = JsonSink if as_json else Sink if len(targets) == 1 else PrefixSink
            for each, ending in follow_all(client, targets, kind, attempt=attempt).items():
                if ending.state != "succeeded":
                    say(f"{each} is {ending.state}: {ending.cause}")
            return
        empty = [each for each in targets if not _print(client, each, attempt, len(targets) > 1, as_json)]
        if len(empty) == len(targets) and not as_json:
            state = client.instance(target.project, target.name, targets[0].index or 0).state
            say(
                f"{targets[0]} is {state} and has written nothing"
                + (f"; `roost why {target}`" if state == "queued" else "")
            )


def _print(client: "Client", target: Target, attempt: int, headed: bool, as_json: bool) -> bool:
    """Whether there was anything."""
    something = False
    assert target.index is not None
    for piece in client.log_pieces(target.project, target.name, target.index, attempt=attempt):
        if as_json:
            from roost.cli.following import JsonSink  # noqa: PLC0415

            JsonSink(target).write(piece)
        else:
            if headed and not something:
                sys.stdout.buffer.write(f"==> {target} <==\n".encode())
            sys.stdout.buffer.write(piece)
        something = True
    sys.stdout.buffer.flush()
    return something
