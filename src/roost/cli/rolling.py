"""Telling how a change goes, until it is done, has failed or has gone back."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from roost.cli.outcome import DONE, FAILED
from roost.cli.output import say
from roost.cli.targets import Target
from roost.model.units import duration_ms

if TYPE_CHECKING:
    from roost.client import Client
    from roost.client.rolling import Standing
    from roost.client.types import Workload

wait_option = click.option("--wait", "wait", is_flag=True, help="Tell how it goes, until it is done or has failed.")
timeout_option = click.option(
    "--timeout", metavar="DURATION", help="How long to wait, like 30s or 10m. [default: for ever]"
)


def seconds(timeout: str | None, wait: bool) -> float | None:
    """How long to wait at most; None: for ever."""
    if timeout is None:
        return None
    if not wait:
        raise click.UsageError("--timeout says how long to --wait; give both")
    return duration_ms(timeout, "--timeout") / 1_000


def follow(client: "Client", workloads: Sequence["Workload"], timeout_s: float | None) -> "tuple[int, list[Standing]]":
    """Wait for each of them. The exit code: 0 if all are as they were applied."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    found = []
    for workload in workloads:
        line = Line(str(Target(workload.project, workload.name)))
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            standing = client.wait_for_version(workload, left, line.tell)
        finally:
            line.end()
        found.append(standing)
        if not standing.well:
            say(f"{line.name}: {standing.words}")
    return DONE if all(each.well for each in found) else FAILED, found


class Line:
    """A line that changes in place on a terminal; elsewhere one line for each that is new."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._last = ""
        self._is_open = False
        self._in_place = sys.stderr.isatty()

    def tell(self, standing: "Standing") -> None:
        """Say how it stands. What went wrong is said by whoever waits."""
        if standing.words == self._last or (standing.over and not standing.well):
            return
        self._last = standing.words
        if not self._in_place:
            say(f"{self.name}: {standing.words}")
            return
        text = f"roost: {self.name}: {standing.words}"
        click.echo(f"\r\x1b[K{text[: _width() - 1]}", err=True, nl=False)
        self._is_open = True

    def end(self) -> None:
        """Whatever comes next begins on a line of its own."""
        if self._is_open:
            click.echo(err=True)
            self._is_open = False


def _width() -> int:
    import shutil  # noqa: PLC0415  (only for a terminal)

    return shutil.get_terminal_size().columns
