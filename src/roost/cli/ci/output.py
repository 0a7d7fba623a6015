"""Output of a followed run: logs on stdout, progress on stderr, or everything as JSON lines."""

import os
import sys
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

import click

from roost.cli.ci.runs import PipelineRun
from roost.cli.ci.stages import HEADER, Stage, StageResult, row_of
from roost.cli.common.format import took
from roost.cli.common.output import echo_err, print_json_line, print_table, write_bytes
from roost.schema.work import InstanceView

LINE_BYTES_MAX = 1 << 20  # buffered until its end; a longer line is printed in pieces
COLORS = ("cyan", "magenta", "yellow", "blue", "green", "bright_cyan", "bright_magenta", "bright_yellow")


class Lines:
    """For people: every line of a log behind the name of its action, its bytes untouched."""

    def __init__(self, run: PipelineRun, stages: Sequence[Stage]) -> None:
        self._run = run
        self._colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._color_of = {stage.action: COLORS[number % len(COLORS)] for number, stage in enumerate(stages)}
        self._width = max(len(stage.label(stage.workload.count - 1)) for stage in stages)
        self._rest: dict[str, bytes] = {}

    def begin(self, stages: Sequence[Stage]) -> None:
        echo_err(f"run {self._run}: {len(stages)} action{'s' if len(stages) > 1 else ''}")

    def write(self, stage: Stage, index: int, data: bytes) -> None:
        label = stage.label(index)
        *lines, rest = (self._rest.pop(label, b"") + data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            lines, rest = [*lines, rest], b""
        if rest:
            self._rest[label] = rest
        self._put(stage, label, lines)

    def cut(self, stage: Stage, index: int) -> None:
        label = stage.label(index)
        if rest := self._rest.pop(label, b""):
            self._put(stage, label, [rest])

    def moved(self, stage: Stage, before: InstanceView | None, instance: InstanceView) -> None:
        """An element changed its state. Of arrays only failures are shown."""
        label = stage.label(instance.index)
        if before is not None and (why := _why_again(before, instance)):
            echo_err(f"{label} is to run again: {why}")
        if instance.state == "running" and stage.workload.count == 1:
            attempt = f", attempt {instance.attempt}" if instance.attempt > 1 else ""
            echo_err(f"{label} runs on {instance.node}{attempt}")
        elif instance.is_over and instance.state != "succeeded" and stage.workload.count > 1 and instance.attempt:
            echo_err(f"{label} {_ended(instance.state)}: {instance.message}")

    def ended(self, stage: Stage, result: StageResult) -> None:
        elements = f" ({result.elements} elements)" if result.elements > 1 else ""
        where = f" on {result.node}" if result.node and result.elements == 1 else ""
        time = f"{where} in {took(result.started_ms, result.finished_ms)}" if result.started_ms else ""
        why = f": {result.message}" if result.state != "succeeded" and result.message else ""
        echo_err(f"{result.action}{elements} {_ended(result.state)}{time}{why}")

    def finish(self, results: Sequence[StageResult], code: int) -> None:
        sys.stdout.flush()
        print_table(HEADER, list(map(row_of, results)), err=True)

    def _put(self, stage: Stage, label: str, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        text = f"{label.ljust(self._width)} |"
        prefix = (click.style(text, fg=self._color_of[stage.action]) if self._colored else text).encode() + b" "
        write_bytes(b"".join(prefix + line + b"\n" for line in lines))
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
        """Print pieces at once."""

    def moved(self, stage: Stage, before: InstanceView | None, instance: InstanceView) -> None:
        self._tell("state", action=stage.action, index=instance.index, state=instance.state, node=instance.node,
                   attempt=instance.attempt, message=instance.message)  # fmt: skip

    def ended(self, stage: Stage, result: StageResult) -> None:
        self._tell("end", **result._asdict())

    def finish(self, results: Sequence[StageResult], code: int) -> None:
        answer = [result._asdict() for result in results]
        self._tell("finished", run=self._run.id, pipeline=self._run.pipeline, exit_code=code, actions=answer)

    def _tell(self, event: str, **fields: Any) -> None:
        print_json_line({"event": event, **fields})


def _why_again(before: InstanceView, instance: InstanceView) -> str:
    """Why an attempt is not the last one. Mostly the next one has its place in the same moment, and a new cause."""
    if not before.attempt or before.is_over or before.state == "queued":
        return ""
    if instance.state == "queued":
        return instance.message
    if instance.attempt == before.attempt:
        return ""
    if instance.losses > before.losses:
        return f"node {before.node} lost"
    return "the attempt before failed" if instance.failures > before.failures else f"it had to leave {before.node}"


def _ended(state: str) -> str:
    return {"succeeded": "succeeded", "failed": "failed", "timed_out": "timed out"}.get(state, f"is {state}")
