"""The terminal of this process: raw while a command elsewhere has it, and put back whatever happens."""

import os
import signal
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)


def size_of(fd: int) -> tuple[int, int]:
    """Rows and columns; zeros where it has none."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return 0, 0
    return rows, columns


@contextmanager
def raw_terminal(fd: int, resized: Callable[[int, int], None]) -> Iterator[None]:
    """Every key goes through. Signals that end us put the terminal back first."""
    before = termios.tcgetattr(fd)

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def changed(_: int, frame: FrameType | None) -> None:
        resized(*size_of(fd))

    handlers = {number: signal.signal(number, end) for number in ENDING}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, changed)
    try:
        tty.setraw(fd, termios.TCSADRAIN)  # keys that were typed ahead are kept
        yield
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
