"""The progress of a transfer: one line on a terminal, with rate and time left; nothing on a pipe."""

import sys
import time
from types import TracebackType

import click

from roost.model.spec.units import show_duration, show_size

QUIET_S = 0.5  # what takes less is not shown
INTERVAL_S = 0.1  # between two lines: a faster line cannot be read
BAR_WIDTH = 20


class TransferBar:
    """`with TransferBar("sending") as bar:`; its methods are called with the bytes done and in total."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._began = self._written = time.monotonic()
        self._phase = ""
        self._first = 0  # bytes that were done when the phase began
        self._is_dirty = False

    def __enter__(self) -> "TransferBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        if self._is_dirty:
            click.echo("\r\033[K", nl=False, err=True)
            self._is_dirty = False

    def read(self, done: int, total: int) -> None:
        """Files are read and hashed; how many there will be is not known."""
        self._show("reading", done, total)

    def moved(self, done: int, total: int) -> None:
        self._show(self._verb, done, total)

    def _show(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._began, self._first = phase, now, done
        if self._is_shown and now - self._began > QUIET_S and now - self._written > INTERVAL_S:
            self._written = now
            self._is_dirty = True
            click.echo(f"\r{line(phase, done, total, done - self._first, now - self._began)}\033[K", nl=False, err=True)


def line(phase: str, done: int, total: int, moved: int, seconds: float) -> str:
    """Fits 80 columns. `moved`: bytes of these seconds, without those that were there before."""
    rate = moved / seconds if seconds > 0 else 0.0
    speed = f"{show_size(int(rate))}/s" if rate else ""
    if not total:
        return f"{phase}  {show_size(done)}  {speed}".rstrip()
    full = BAR_WIDTH * done // total
    left = f"{show_duration(int((total - done) / rate) * 1_000 or 1_000)} left" if rate and done < total else ""
    bar = "█" * full + "░" * (BAR_WIDTH - full)
    return f"{phase}  {bar} {100 * done // total:3}%  {show_size(done)} of {show_size(total)}  {speed}  {left}".rstrip()
