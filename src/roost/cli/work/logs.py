"""roost logs: what instances wrote, byte for byte."""

from binascii import a2b_base64
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.common.log_follow import JsonSink, LogSink, Position, PrefixSink, SearchSink, follow_all
from roost.cli.common.options import json_option, project_option
from roost.cli.common.output import echo_err, flush, write_bytes
from roost.cli.common.session import connect
from roost.cli.common.targets import TARGET, Target, in_project
from roost.client import Client
from roost.client.workloads import Stream
from roost.schema.work import WorkloadView

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
TAIL_MAX = 10_000  # lines of one answer of the server
FAILED_STATES = ("failed", "timed_out", "lost")


class LogSearch(NamedTuple):
    """What of a log is printed."""

    tail: int | None = None
    since: str = ""
    grep: str = ""
    timestamps: bool = False

    def sink(self, inner: LogSink) -> SearchSink:
        return SearchSink(inner, self.grep.encode(), timestamps=self.timestamps)


WHOLE = LogSearch()


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@click.option("-f", "--follow", is_flag=True, help="Follow until it is finished.")
@click.option("--tail", type=click.IntRange(0, TAIL_MAX), help="Only the last so many lines.")
@click.option("--since", default="", metavar="TIME", help="Only lines since then: RFC 3339, or a duration like 10m.")
@click.option("--grep", default="", metavar="TEXT", help="Only lines that have this text.")
@click.option("--timestamps", is_flag=True, help="With the time when the server received each line.")
@click.option("--failed", is_flag=True, help="Only instances that failed, timed out or were lost.")
@click.option("--attempt", type=click.IntRange(min=0), default=0, help="Attempt. [default: the newest]")
@click.option("--stream", type=click.Choice(STREAMS), help="Only this log. [default: both]")
@project_option
@json_option
def logs(
    target: Target, follow: bool, attempt: int, stream: Stream | None, project: str, failed: bool, as_json: bool,
    **search: Any,
) -> None:  # fmt: skip
    """Print the logs of instances, byte by byte.

    The log of a separate stderr is printed on stderr. Several instances are printed one after the other with a heading;
    with -f interleaved, with the instance as prefix.
    --json has one line per chunk, its bytes in base64.
    Lines are searched on the server. Those of one batch of a node have the same time.

    Examples:
      roost logs train              its output so far
      roost logs -f train           follow until it is finished
      roost logs train.7 --attempt 1 > first.log
      roost logs train --stream stderr
      roost logs train --tail 20 --timestamps
      roost logs train --since 10m --grep ERROR
      roost logs train --failed --tail 5
      roost logs ci:3f9a1c          all actions of a run of a pipeline

    Next: `roost show NAME` shows the result, `roost why NAME` why it is pending.
    """
    target = in_project(target, project)
    with connect() as client:
        targets = _instances(client, target)
        if failed:
            targets = _failed(client, targets)
            if not targets:
                echo_err(f"no instance of {target} has failed")
                return
        print_logs(client, targets, follow, attempt, as_json, stream, LogSearch(**search))


def _failed(client: Client, targets: Sequence[Target]) -> list[Target]:
    states = {
        Target(item.project, item.name, item.index): item.state
        for project, name in dict.fromkeys((target.project, target.name) for target in targets)
        for item in client.instances.list(project, name)
    }
    return [target for target in targets if states.get(target) in FAILED_STATES]


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
    client: Client, targets: Sequence[Target], follow: bool, attempt: int, as_json: bool, stream: Stream | None = None,
    search: LogSearch = WHOLE,
) -> None:  # fmt: skip
    if stream == "stderr" and targets:
        first = targets[0]
        if client.workloads.get(first.project, first.name).document.get("stderr") != "separate":
            echo_err(f"{first} has one log for stdout and stderr: `--stream stdout` prints both")
    streams = STREAMS if stream is None else (stream,)
    if follow:
        _follow(client, targets, attempt, as_json, stream, search)
        return
    written = [_print(client, target, attempt, streams, len(targets) > 1, as_json, search) for target in targets]
    if not any(written) and not as_json and search == WHOLE:
        first = targets[0]
        state = client.instances.get(first.project, first.name, first.index or 0).state
        why = f"; `roost why {Target(first.project, first.name)}`" if state == "queued" else ""
        echo_err(f"{first} is {state} and has written nothing{why}")


def _follow(
    client: Client, targets: Sequence[Target], attempt: int, as_json: bool, stream: Stream | None, search: LogSearch
) -> None:
    kind = JsonSink if as_json else LogSink if len(targets) == 1 else PrefixSink
    positions: dict[Target, Position] = {}
    sinks: dict[Target, LogSink] = {target: kind(target) for target in targets}
    if search != WHOLE:
        for target in targets:
            sink = sinks[target] = search.sink(sinks[target])
            found = {name: _search(client, target, attempt, name, search, sink) for name in STREAMS
                     if stream in (name, None)}  # fmt: skip
            offsets = [place[1] for place in found.values()]
            positions[target] = Position(max(place[0] for place in found.values()), *offsets)
    for target, ending in follow_all(
        client, targets, sinks.__getitem__, attempt=attempt, stream=stream or "all", positions=positions
    ).items():
        if ending.state != "succeeded":
            echo_err(f"{target} is {ending.state}: {ending.message}")


def _search(
    client: Client, target: Target, attempt: int, stream: Stream, search: LogSearch, sink: SearchSink
) -> tuple[int, int]:
    """Print the lines that are there; returns the attempt and the offset behind them."""
    position = (attempt, 0)
    for found in client.logs.lines(
        target.project, target.name, target.index or 0, attempt=attempt, stream=stream, since=search.since,
        grep=search.grep, tail=search.tail,
    ):  # fmt: skip
        for line in found.lines:
            sink.line(a2b_base64(line.data), line.at_ms, err=stream == "stderr")
        position = (found.attempt, found.next)
    return position


class _HeadedSink(LogSink):
    """With a heading before the first bytes."""

    def __init__(self, target: Target, headed: bool, as_json: bool) -> None:
        super().__init__(target)
        self._heading = f"==> {target} <==\n".encode() if headed else b""
        self._json = JsonSink(target) if as_json else None
        self.is_empty = True

    def write(self, data: bytes, *, err: bool = False) -> None:
        if self._json is not None:
            self._json.write(data, err=err)
        else:
            write_bytes(self._heading + data, err=err)
        self._heading, self.is_empty = b"", False


def _print(
    client: Client, target: Target, attempt: int, streams: Sequence[Stream], headed: bool, as_json: bool,
    search: LogSearch,
) -> bool:  # fmt: skip
    """Print the logs of one instance, one after the other. False: there is nothing to print."""
    assert target.index is not None
    is_empty = True
    for stream in streams:
        sink = _HeadedSink(target, headed, as_json)
        if search != WHOLE:
            _search(client, target, attempt, stream, search, search.sink(sink))
        else:
            for piece in client.logs.pieces(target.project, target.name, target.index, attempt=attempt, stream=stream):
                sink.write(piece, err=stream == "stderr")
        is_empty = is_empty and sink.is_empty
    flush()
    return not is_empty
