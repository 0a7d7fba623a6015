"""Ctrl-C and SIGTERM while work is followed: counted, and acted on between two writes."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

from roost.cli.common.output import echo_err

PATIENCE_S = 1.0  # pending for so long, the reason is reported
AGAIN_S = 10.0  # and asked for again, in case it has changed
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, signals are counted, and `fd` becomes readable to wake up a waiting loop."""

    def __init__(self, signals: Iterable[signal.Signals] = SIGNALS, *, patience: float = 1) -> None:
        self.count = 0
        self.last = 0
        self.patience = patience  # signals that are only counted; one more raises KeyboardInterrupt
        self.heard: Callable[[], object] | None = None  # called by each signal
        self._signals = signals
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> "Interrupts":
        self._wakeup_before = self.wake()
        self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self.fd)
        os.close(self._write_fd)

    def wake(self) -> int:
        """Signals make `fd` readable, and no longer the descriptor that is returned: the one of an event loop."""
        return signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self.fd, 64)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.last = number
        if self.heard is not None:
            self.heard()
        if self.count > self.patience:
            raise KeyboardInterrupt


class Watcher:
    """Beside the streams of work: it reports why work is pending, and passes Ctrl-C on."""

    def __init__(
        self, name: str, interrupts: Interrupts, cancel: Callable[[], object], reasons: Callable[[], Iterable[str]]
    ) -> None:
        self.left = False  # interrupted twice: the work is cancelled, and its end is not waited for
        self._name = name
        self._interrupts = interrupts
        self._cancel = cancel
        self._reasons = reasons
        self._seen = 0  # interrupts that were acted on
        self._reported: set[str] = set()
        self._ask_at = time.monotonic() + PATIENCE_S

    def tick(self, started: bool = False) -> float | None:
        """Seconds until the next tick; below 0: no limit, because it has started; None: stop following."""
        if self._interrupts.count > self._seen:
            self._interrupts.clear()
            self._seen = self._interrupts.count
            if self._seen > 1:
                self.left = True
                return None
            echo_err(f"cancelling {self._name}; once more to leave without waiting")
            self._cancel()
        if started:
            return -1.0
        if time.monotonic() >= self._ask_at:
            for reason in self._reasons():
                if reason not in self._reported:
                    self._reported.add(reason)
                    echo_err(reason)
            self._ask_at = time.monotonic() + AGAIN_S
        return max(0.0, self._ask_at - time.monotonic())
