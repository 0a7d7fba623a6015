"""Ctrl-C and SIGTERM as something to look at, not as something that strikes in the middle of a write."""

import os
import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, signals are counted, and `fd` becomes readable so that whoever waits wakes up."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        self.patience = 1  # so many are only counted; one more strikes after all, because nobody seems to look
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> "Interrupts":
        self._wakeup_before = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self.fd)
        os.close(self._write_fd)

    def clear(self) -> None:
        """It was looked at: wait again."""
        try:
            os.read(self.fd, 64)
        except BlockingIOError:
            return

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.last = number
        if self.count > self.patience:
            raise KeyboardInterrupt
