"""Progress of a rollout until it is done, failed or rolled back."""

import shutil
import sys
import time
from collections.abc import Sequence

import click

from roost.cli.common.exit_codes import DONE, FAILED
from roost.cli.common.output import echo_err
from roost.cli.common.targets import Target
from roost.client import Client
from roost.client.wait import RolloutStatus
from roost.model.spec.units import duration_ms
from roost.schema.work import WorkloadView

wait_option = click.option("--wait", "wait", is_flag=True, help="Show progress until it is done or has failed.")
timeout_option = click.option("--timeout", metavar="DURATION", help="Time limit, like 30s or 10m. [default: none]")


def seconds(timeout: str | None, wait: bool) -> float | None:
    if timeout is None:
        return None
    if not wait:
        raise click.UsageError("--timeout is the limit of --wait; give both")
    return duration_ms(timeout, "--timeout") / 1_000


def follow(
    client: Client, workloads: Sequence[WorkloadView], timeout_s: float | None
) -> tuple[int, list[RolloutStatus]]:
    """Wait for each of them. The exit code: 0 if all are as they were applied."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    found = []
    for workload in workloads:
        line = ProgressLine(str(Target(workload.project, workload.name)))
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            rollout = client.workloads.wait_for_version(workload, left, line.tell)
        finally:
            line.end()
        found.append(rollout)
        if not rollout.well:
            echo_err(f"{line.name}: {rollout.message}")
    return DONE if all(status.well for status in found) else FAILED, found


class ProgressLine:
    """A line that changes in place on a terminal; elsewhere one line for each that is new."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._last = ""
        self._in_place = sys.stderr.isatty()

    def tell(self, status: RolloutStatus) -> None:
        """Show progress. The caller reports errors."""
        if status.message == self._last or (status.over and not status.well):
            return
        self._last = status.message
        if not self._in_place:
            echo_err(f"{self.name}: {status.message}")
            return
        text = f"roost: {self.name}: {status.message}"
        click.echo(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", err=True, nl=False)

    def end(self) -> None:
        if self._in_place and self._last:
            click.echo(err=True)
