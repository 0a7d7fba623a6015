"""Processes that left their run's process group, and cgroups that are not empty yet: looked after once they are alone.

A daemon that a run has put into a session of its own becomes the keeper's child when its parent ends. It carries its
run's id in its environment, so it can be distinguished from those of live runs.
"""

import contextlib
from collections.abc import Container

from roost.keeper import processes as proc
from roost.keeper.cgroup import Group
from roost.keeper.clock import NEVER
from roost.keeper.containment import Containment
from roost.keeper.recycling import RecycledFiles

LOOK_MS = 50  # how long after an end to look: many ends, one look


class Orphans:
    """One look costs about 15 us and is taken at most twenty times a second, however many runs end."""

    def __init__(self, directory: str, spares: RecycledFiles, containment: Containment, *, reaper: bool) -> None:
        self.directory = directory
        self.spares = spares
        self.containment = containment
        self.reaper = reaper  # whether orphans become our children
        self.look_at = NEVER
        self.agents: set[int] = set()  # children that are the agent, or were left by one: not ours to end
        self.dying: list[Group] = []  # cgroups that could not be removed yet

    def check_soon(self, now: int) -> None:
        if self.look_at == NEVER:
            self.look_at = now + LOOK_MS

    def reaped(self, pid: int, now: int) -> None:
        """An adopted process is gone; its own children may be ours now."""
        self.agents.discard(pid)
        self.check_soon(now)

    def remove(self, group: Group) -> None:
        if not group.remove():
            self.dying.append(group)

    def check(self, live_runs: Container[str], main_pids: Container[int], now: int) -> None:
        """End the strays of ended runs, and tell the spares whether any was found."""
        self.look_at = NEVER
        self.dying = [group for group in self.dying if not (group.kill() and group.remove())]
        clean = True
        for pid in (proc.children() or ()) if self.reaper else ():
            if pid in main_pids or pid in self.agents:
                continue
            environ = proc.environment(pid)
            if proc.find(environ, proc.AGENT_MARK) is not None:
                self.agents.add(pid)
                continue
            run_id = proc.find(environ, proc.RUN_MARK) if proc.find(environ, proc.MARK) == self.directory else None
            if run_id is None:
                clean = False  # it hides whose it is: its cgroup tells, and nothing is used again that it may hold
            elif run_id not in live_runs:
                clean = False
                with contextlib.suppress(PermissionError):
                    proc.kill(pid)
                self.check_soon(now)
        if self.spares.verify(clean=clean) | self.containment.check() or self.dying:
            self.check_soon(now)
