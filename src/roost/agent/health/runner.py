"""Health checks of all runs of this node, each in its turn: never two of one run, and so many at a time."""

import asyncio
from collections.abc import Callable

import msgspec

from roost.agent.health.probe import ProbeTarget, probe

PROBES_MAX = 32  # at a time: as many commands as a machine starts without noticing; others wait for their turn

Reported = Callable[[int, str], None]  # token and what is wrong


class Checks:
    """The checks of all watched runs. `report` gets each result, and its receiver calls `begin` for the next check."""

    def __init__(self, report: Reported) -> None:
        self._reported = report
        self._targets: dict[int, ProbeTarget] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._slots: dict[int, int] = {}
        self._due: dict[int, None] = {}  # whose turn it is, in order
        self._looks: dict[int, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        self._changed.set()  # for checks that were broken off when an earlier `run` failed
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    while self._due and len(self._looks) < PROBES_MAX:
                        token = next(iter(self._due))
                        del self._due[token]
                        self._looks[token] = group.create_task(self._inspect(token, self._targets[token]))
        finally:
            self._due.update(dict.fromkeys(self._looks))  # tasks that were cancelled before they began
            self._looks.clear()

    def entered(self, token: int, pid: int) -> None:
        """A run is in the slot with this process."""
        self._slots[token] = pid

    def watch(self, token: int, target: ProbeTarget) -> None:
        self._targets[token] = target

    def begin(self, token: int, pause_ms: int) -> None:
        if token in self._targets and token not in self._timers:
            later = asyncio.get_running_loop().call_later
            self._timers[token] = later(pause_ms / 1_000, self._turn, token)

    def leave(self, token: int) -> None:
        """It is stopping or has ended: a look that is under way is broken off and heard of no more."""
        self._slots.pop(token, None)
        if self._targets.pop(token, None) is None:
            return
        if (timer := self._timers.pop(token, None)) is not None:
            timer.cancel()
        self._due.pop(token, None)
        if token in self._looks:
            self._looks[token].cancel()

    def _turn(self, token: int) -> None:
        del self._timers[token]
        self._due[token] = None
        self._changed.set()

    async def _inspect(self, token: int, target: ProbeTarget) -> None:
        try:
            message = await probe(msgspec.structs.replace(target, slot=self._slots.get(token, 0)))
            del self._looks[token]
            self._reported(token, message)
        except BaseException:
            if token in self._targets:
                self._due[token] = None  # its turn again, when the checks are restarted
            raise
        finally:
            self._looks.pop(token, None)
            self._changed.set()
