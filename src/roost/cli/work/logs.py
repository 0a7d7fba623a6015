"""roost logs: what instances wrote, byte for byte."""

from collections.abc import Iterable, Sequence

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.common.log_follow import JsonSink, LogSink, PrefixSink, follow_all
from roost.cli.common.options import json_option, project_option
from roost.cli.common.output import echo_err, flush, write_bytes
from roost.cli.common.session import connect
from roost.cli.common.targets import TARGET, Target, in_project
from roost.client import Client
from roost.client.workloads import Stream
from roost.schema.work import WorkloadView

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@click.option("-f", "--follow", is_flag=True, help="Follow until it is finished.")
@click.option("--attempt", type=click.IntRange(min=0), default=0, help="Attempt. [default: the newest]")
@click.option("--stream", type=click.Choice(STREAMS), help="Only this log. [default: both]")
@project_option
@json_option
def logs(
    target: Target, follow: bool, attempt: int, stream: Stream | None, project: str, as_json: bool
) -> None:  # fmt: skip
    """Print the logs of instances, byte by byte.

    The log of a separate stderr is printed on stderr. Several instances are printed one after the other with a heading;
    with -f interleaved, with the instance as prefix.
    --json has one line per chunk, its bytes in base64.

    Examples:
      roost logs train              its output so far
      roost logs -f train           follow until it is finished
      roost logs train.7 --attempt 1 > first.log
      roost logs train --stream stderr
      roost logs ci:3f9a1c          all actions of a run of a pipeline

    Next: `roost show NAME` shows the result, `roost why NAME` why it is pending.
    """
    target = in_project(target, project)
    with connect() as client:
        print_logs(client, _instances(client, target), follow, attempt, as_json, stream)


def _instances(client: Client, target: Target) -> list[Target]:
    """The instances that a target names: one, all of a workload, or all of a run of a pipeline."""
    if target.index is not None:
        return [target]
    if target.run:
        from roost.cli.ci.runs import find_run

        return instances_of(find_run(client, target.project, target.run).workloads)
    workload = client.workloads.get(target.project, target.name)
    if workload.schedule is not None:
        last = next((f"; `roost logs {Target(workload.project, run.name)}`" for run in workload.schedule.runs), "")
        raise Failure(f"{target} runs by its schedule; each run has logs of its own{last}")
    return instances_of([workload])


def instances_of(workloads: Iterable[WorkloadView]) -> list[Target]:
    return [Target(load.project, load.name, index) for load in workloads for index in range(load.count)]


def print_logs(
    client: Client, targets: Sequence[Target], follow: bool, attempt: int, as_json: bool, stream: Stream | None = None
) -> None:
    if stream == "stderr" and targets:
        first = targets[0]
        if client.workloads.get(first.project, first.name).document.get("stderr") != "separate":
            echo_err(f"{first} has one log for stdout and stderr: `--stream stdout` prints both")
    if follow:
        kind = JsonSink if as_json else LogSink if len(targets) == 1 else PrefixSink
        for target, ending in follow_all(client, targets, kind, attempt=attempt, stream=stream or "all").items():
            if ending.state != "succeeded":
                echo_err(f"{target} is {ending.state}: {ending.message}")
        return
    streams = STREAMS if stream is None else (stream,)
    written = [_print(client, target, attempt, streams, len(targets) > 1, as_json) for target in targets]
    if not any(written) and not as_json:
        first = targets[0]
        state = client.instances.get(first.project, first.name, first.index or 0).state
        why = f"; `roost why {Target(first.project, first.name)}`" if state == "queued" else ""
        echo_err(f"{first} is {state} and has written nothing{why}")


def _print(
    client: Client, target: Target, attempt: int, streams: Sequence[Stream], headed: bool, as_json: bool
) -> bool:
    """Print the logs of one instance, one after the other. False: there is nothing to print."""
    assert target.index is not None
    is_empty = True
    for stream in streams:
        err = stream == "stderr"
        heading = f"==> {target} <==\n".encode() if headed else b""
        for piece in client.logs.pieces(target.project, target.name, target.index, attempt=attempt, stream=stream):
            if as_json:
                JsonSink(target).write(piece, err=err)
            else:
                write_bytes(heading + piece, err=err)
            heading, is_empty = b"", False
    flush()
    return not is_empty
