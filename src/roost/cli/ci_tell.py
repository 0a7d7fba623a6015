"""What a run that is followed tells: on stdout what actions write, on stderr what becomes of them; or all as JSON."""

import os
import sys
from binascii import b2a_base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from roost.cli.ci_stages import HEADER, Result, Stage, rows_of
from roost.cli.output import print_json_line, print_table, say, took

if TYPE_CHECKING:
    from roost.cli.ci_runs import Run
    from roost.client.types import Instance

LINE_BYTES_MAX = 1 << 20  # kept until its end comes; what is longer is told in pieces, each as a line
COLORS = ("cyan", "magenta", "yellow", "blue", "green", "bright_cyan", "bright_magenta", "bright_yellow")


class Lines:
    """For people: every line of a log behind the name of its action, its bytes untouched."""

    def __init__(self, run: "Run", stages: Sequence[Stage]) -> None:
        self._run = run
        self._colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._color_of = {stage.action: COLORS[number % len(COLORS)] for number, stage in enumerate(stages)}
        self._width = max(len(stage.label(stage.workload.count - 1)) for stage in stages)
        self._rest: dict[str, bytes] = {}

    def begin(self, stages: Sequence[Stage]) -> None:
        """The run has begun."""
        say(f"run {self._run}: {len(stages)} action{'s' if len(stages) > 1 else ''}")

    def write(self, stage: Stage, index: int, data: bytes) -> None:
        """Bytes of a log; a line comes out when it is whole."""
        label = stage.label(index)
        *lines, rest = (self._rest.pop(label, b"") + data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            lines, rest = [*lines, rest], b""
        if rest:
            self._rest[label] = rest
        self._put(stage, label, lines)

    def cut(self, stage: Stage, index: int) -> None:
        """No more will come of this attempt: a line without an end is told as it is."""
        label = stage.label(index)
        if rest := self._rest.pop(label, b""):
            self._put(stage, label, [rest])

    def moved(self, stage: Stage, before: "Instance | None", instance: "Instance") -> None:
        """An element came into another state. Of arrays only what goes wrong is told."""
        label = stage.label(instance.index)
        if before is not None and (why := _why_again(before, instance)):
            say(f"{label} is to run again: {why}")
        if instance.state == "running" and stage.workload.count == 1:
            attempt = f", attempt {instance.attempt}" if instance.attempt > 1 else ""
            say(f"{label} runs on {instance.node}{attempt}")
        elif instance.is_over and instance.state != "succeeded" and stage.workload.count > 1 and instance.attempt:
            say(f"{label} {_ended(instance.state)}: {instance.cause}")

    def ended(self, stage: Stage, result: Result) -> None:
        """An action is over, and all that it wrote was told."""
        elements = f" ({result.elements} elements)" if result.elements > 1 else ""
        where = f" on {result.node}" if result.node and result.elements == 1 else ""
        time = f"{where} in {took(result.started_ms, result.finished_ms)}" if result.started_ms else ""
        why = f": {result.cause}" if result.state != "succeeded" and result.cause else ""
        say(f"{result.action}{elements} {_ended(result.state)}{time}{why}")

    def finish(self, results: Sequence[Result], code: int) -> None:
        """The run is over."""
        sys.stdout.flush()
        print_table(HEADER, rows_of(results), err=True)

    def _put(self, stage: Stage, label: str, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        text = f"{label.ljust(self._width)} |"
        prefix = (click.style(text, fg=self._color_of[stage.action]) if self._colored else text).encode() + b" "
        sys.stdout.buffer.write(b"".join(prefix + line + b"\n" for line in lines))
        sys.stdout.buffer.flush()


class JsonLines(Lines):
    """For programs: one line of JSON for each thing that happens; bytes are base64, because they may be no text."""

    def begin(self, stages: Sequence[Stage]) -> None:
        actions = [{"action": stage.action, "workload": stage.workload.name} for stage in stages]
        run = self._run
        self._tell("submitted", run=run.id, pipeline=run.pipeline, project=run.project, actions=actions)

    def write(self, stage: Stage, index: int, data: bytes) -> None:
        self._tell("output", action=stage.action, index=index, data=b2a_base64(data, newline=False).decode())

    def cut(self, stage: Stage, index: int) -> None:
        """Pieces are told as they come: nothing is held back."""

    def moved(self, stage: Stage, before: "Instance | None", instance: "Instance") -> None:
        self._tell("state", action=stage.action, index=instance.index, state=instance.state, node=instance.node,
                   attempt=instance.attempt, cause=instance.cause)  # fmt: skip

    def ended(self, stage: Stage, result: Result) -> None:
        self._tell("end", **result._asdict())

    def finish(self, results: Sequence[Result], code: int) -> None:
        told = [each._asdict() for each in results]
        self._tell("finished", run=self._run.id, pipeline=self._run.pipeline, exit_code=code, actions=told)

    def _tell(self, event: str, **fields: Any) -> None:
        print_json_line({"event": event, **fields})


def _why_again(before: "Instance", instance: "Instance") -> str:
    """Why an attempt is not the last one. Mostly the next one has its place in the same moment, and a new cause."""
    if not before.attempt or before.is_over or before.state == "queued":
        return ""
    if instance.state == "queued":
        return instance.cause
    if instance.attempt == before.attempt:
        return ""
    if instance.losses > before.losses:
        return f"node {before.node} was lost"
    return "the attempt before failed" if instance.failures > before.failures else f"it had to leave {before.node}"


def _ended(state: str) -> str:
    return {"succeeded": "succeeded", "failed": "failed", "timed_out": "timed out"}.get(state, f"is {state}")
