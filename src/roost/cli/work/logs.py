"""roost logs: what instances wrote, byte for byte."""

import sys
from dataclasses import replace

import click

from roost.cli.common.log_follow import JsonSink, LogSink, PrefixSink, follow_all
from roost.cli.common.options import json_option, project_option
from roost.cli.common.output import echo_err, write_bytes
from roost.cli.common.session import connect
from roost.cli.common.targets import TARGET, Target, in_project
from roost.client import Client


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@click.option("-f", "--follow", is_flag=True, help="Follow until it is finished.")
@click.option("--attempt", type=click.IntRange(min=0), default=0, help="Attempt. [default: the newest]")
@project_option
@json_option
def logs(target: Target, follow: bool, attempt: int, project: str, as_json: bool) -> None:
    """Print the logs of instances, byte by byte.

    Several instances are printed one after the other with a heading; with -f interleaved, with the instance as prefix.
    --json has one line per chunk, its bytes in base64.

    Examples:
      roost logs train              its output so far
      roost logs -f train           follow until it is finished
      roost logs train.7 --attempt 1 > first.log

    Next: `roost show NAME` shows the result, `roost why NAME` why it is pending.
    """
    target = in_project(target, project)
    with connect() as client:
        targets = [target]
        if target.index is None:
            count = client.workloads.get(target.project, target.name).count
            targets = [replace(target, index=index) for index in range(count)]
        if follow:
            kind = JsonSink if as_json else LogSink if len(targets) == 1 else PrefixSink
            for other_target, ending in follow_all(client, targets, kind, attempt=attempt).items():
                if ending.state != "succeeded":
                    echo_err(f"{other_target} is {ending.state}: {ending.message}")
            return
        empty = [target for target in targets if not _print(client, target, attempt, len(targets) > 1, as_json)]
        if len(empty) == len(targets) and not as_json:
            state = client.instances.get(target.project, target.name, targets[0].index or 0).state
            why = f"; `roost why {target}`" if state == "queued" else ""
            echo_err(f"{targets[0]} is {state} and has written nothing{why}")


def _print(client: Client, target: Target, attempt: int, headed: bool, as_json: bool) -> bool:
    something = False
    assert target.index is not None
    for piece in client.logs.pieces(target.project, target.name, target.index, attempt=attempt):
        if as_json:
            JsonSink(target).write(piece)
        else:
            if headed and not something:
                write_bytes(f"==> {target} <==\n".encode())
            write_bytes(piece)
        something = True
    sys.stdout.buffer.flush()
    return something
