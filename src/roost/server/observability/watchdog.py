"""The watchdog of the event loop: how long it was held, by what, and since when nothing was read.

A pulse comes every PULSE_S on the loop. If it is late, the loop was held: agents, requests and the renewal of the lead
have waited so long. A thread takes note of what the loop is doing while its pulse is overdue.
"""

import asyncio
import sys
import threading
import time
from types import FrameType

from roost.server.observability import logging
from roost.server.observability.histogram import Histogram

PULSE_S = 0.02
HELD_S = 0.05  # the loop must not be held for longer: a tenth of the shortest beat of an agent
HELD_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RUNNING_S = HELD_S / 2  # of CPU during a hold: with less than this, the process did not run
FRAMES_MAX = 4  # of our own code that are named, the innermost first
NOT_RUNNING = "the process did not run: the machine is overloaded, or it was stopped"

log = logging.logger("loop")


class LoopWatchdog:
    def __init__(self) -> None:
        self.held = Histogram(HELD_SECONDS)
        self.worst_s = 0.0
        self._pulse_s = time.monotonic()
        self._cpu_s = 0.0
        self._counted_s = 0.0  # of the present hold, handed out before its pulse came
        self._unreported_s = 0.0
        self._loop_thread = 0
        self._doing = ""
        self._stopping = threading.Event()

    async def run(self) -> None:
        """Pulse until cancelled."""
        self._loop_thread = threading.get_ident()
        self._pulse_s, self._cpu_s = time.monotonic(), time.thread_time()
        watching = threading.Thread(target=self._watch, name="roost-watchdog", daemon=True)
        watching.start()
        try:
            while True:
                await asyncio.sleep(PULSE_S)
                self._pulse()
        finally:
            self._stopping.set()

    def unread_ms(self) -> int:
        """For how long nothing was read since this was last asked: silence of agents meanwhile means nothing."""
        late_s = self._late_s()
        if late_s >= HELD_S:
            self._unreported_s += late_s - self._counted_s
            self._counted_s = late_s
        unreported_ms = int(self._unreported_s * 1_000)
        self._unreported_s -= unreported_ms / 1_000
        return unreported_ms

    def _late_s(self) -> float:
        return max(0.0, time.monotonic() - self._pulse_s - PULSE_S) if self._loop_thread else 0.0

    def _pulse(self) -> None:
        late_s, cpu_s = self._late_s(), time.thread_time()
        self.held.observe(late_s)
        if late_s >= HELD_S:
            self._unreported_s += late_s - self._counted_s
            used_s = cpu_s - self._cpu_s
            cause = (self._doing or "not seen") if used_s >= RUNNING_S else NOT_RUNNING
            log.warning("the loop was held", ms=round(late_s * 1_000), cpu_ms=round(used_s * 1_000), by=cause)
        self.worst_s = max(self.worst_s, late_s)
        self._pulse_s, self._cpu_s = time.monotonic(), cpu_s
        self._counted_s, self._doing = 0.0, ""

    def _watch(self) -> None:
        while not self._stopping.wait(PULSE_S):
            if not self._doing and self._late_s() >= HELD_S / 2:
                self._doing = described(sys._current_frames().get(self._loop_thread))


def described(frame: FrameType | None) -> str:
    """The innermost functions of Roost on a stack: `core.queue.place.place < core.step.step < ...`."""
    found: list[str] = []
    outermost = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("roost."):
            outermost = f"{module.removeprefix('roost.')}.{frame.f_code.co_name}"
            if len(found) < FRAMES_MAX:
                found.append(outermost)
        frame = frame.f_back
    return " < ".join(dict.fromkeys([*found, outermost])) if found else ""
