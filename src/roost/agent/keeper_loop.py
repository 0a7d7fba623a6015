"""The keeper's one loop: orders come in, processes end, time passes; what happened goes to the agent.

The keeper is the parent of the agent and of every workload process on a node. It is small so that it has few reasons
to die, and it has one thread and waits in one place, so that nothing can make it late.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import signal
import sys
import time

from roost.agent import cgroup, keeper_proc
from roost.agent.keeper_agent import Agent, say
from roost.agent.keeper_link import SOCKET_NAME, Link
from roost.agent.keeper_run import Refused, number
from roost.agent.keeper_runs import Runs
from roost.agent.keeper_strays import NEVER

AGENT_SILENCE_MS = 10_000
AGENT_END_MS_MAX = 3_000
GRACE_MS = 5_000

_decode = json.JSONDecoder().decode


class Keeper:
    """Owns the loop; the table of runs, the agent and the link each own their part."""

    def __init__(self, options: argparse.Namespace, directory: str) -> None:
        self.grace_ms: int = options.grace_ms
        self.agent = Agent(
            options.agent, directory, f"{directory}/{SOCKET_NAME}", options.agent_log, options.agent_silence_ms
        )
        os.chdir(directory)
        self.epoll = select.epoll()
        self.link = Link(self.epoll)
        reaper = keeper_proc.adopt_orphans()
        self.runs = Runs(directory, cgroup.prepare(cgroup.detect()), self.link.emit, reaper=reaper)
        self.signalled = 0  # how often we were asked to end
        self.shutdown_grace_ms: int | None = None  # set: we are ending
        self.agent_kill_at = NEVER  # set: the agent was asked to end
        self.wake_fd = self._catch_signals()

    def _catch_signals(self) -> int:
        """A signal makes a pipe readable, so that the loop waits in one place only."""
        wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._asked_to_end)
        signal.signal(signal.SIGINT, self._asked_to_end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal is no reason to drop work
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel's notice about a file lease (see keeper_spare)
        self.epoll.register(wake_fd, select.EPOLLIN)
        return wake_fd

    def _asked_to_end(self, *_: object) -> None:
        self.signalled += 1

    def run(self) -> None:
        """Until everything has ended, because we were asked to."""
        now = now_ms()
        self.agent.tick(now, self.runs.home_fd)
        while not self._is_over(now):
            self.link.flush()
            at = min(self.runs.next_at(), self.agent.next_at(), self.agent_kill_at)
            # One millisecond more than the difference: the clock is cut to whole ones, and waking too early is waking twice.
            ready = self.epoll.poll(None if at == NEVER else max(0, at - now_ms() + 1) / 1000)
            now = now_ms()
            self._turn(dict(ready), now)
        self.link.flush()

    def _turn(self, ready: dict[int, int], now: int) -> None:
        """Orders first, so that a lease that was renewed in time is never taken for ended; then the dead; then the clock."""
        link = self.link
        if link.fd in ready:
            for line in link.read():
                self._order(line, now)
                self.agent.heard(now)
        if link.listener.fileno() in ready:
            link.accept(self._greeting(now))
            self.agent.heard(now)
        if self.wake_fd in ready:
            os.read(self.wake_fd, 4096)
            self.runs.reap(lambda pid, status: self._other_ended(pid, status, now), now)
        self.runs.tick(now)
        self.agent.tick(now, self.runs.home_fd)
        if self.signalled or self.shutdown_grace_ms is not None:
            self._end(now)

    def _order(self, line: bytes, now: int) -> None:
        """Follow one order. Whatever is wrong with it is told to the agent and hurts nobody else."""
        order: object = None
        try:
            order = _decode(line.decode())
            if not isinstance(order, dict):
                raise Refused("an order is an object")
            self._follow(order, now)
        except (Refused, ValueError, RecursionError) as error:
            known = order if isinstance(order, dict) else {}
            self.link.emit(
                {"event": "refused", "do": known.get("do"), "id": known.get("id"), "error": str(error), "at": now}
            )

    def _follow(self, order: dict[str, object], now: int) -> None:
        do = order.get("do")
        if do == "start":
            self.runs.start(order, now)
        elif do == "forget":
            self.runs.forget(order, now)
        elif do == "stop":
            self.runs.stop(order, now)
        elif do == "lease":
            self.runs.lease(number(order, "until", 0), now)
        elif do == "shutdown":
            self.shutdown_grace_ms = number(order, "grace_ms", self.grace_ms)
        elif do != "ping":
            raise Refused("an order has a `do`: start, stop, lease, forget, ping or shutdown")

    def _greeting(self, now: int) -> dict[str, object]:
        runs = [run.record() for run in self.runs.known.values()]
        return {"event": "runs", "at": now, "lease": self.runs.lease_until, "runs": runs}

    def _other_ended(self, pid: int, status: int, now: int) -> None:
        if pid == self.agent.pid:
            self.agent.ended(status, now)

    def _end(self, now: int) -> None:
        """First the runs, while the agent can still tell about them; then the agent. Asked twice: no more grace."""
        if not self.runs.closing or self.signalled > 1:
            grace_ms = self.grace_ms if self.shutdown_grace_ms is None else self.shutdown_grace_ms
            self.shutdown_grace_ms = 0 if self.signalled > 1 else grace_ms
            self.signalled = 1
            self.agent.wanted = False
            self.runs.stop_all(self.shutdown_grace_ms, "shutdown", now)
        if self.runs.live:
            return
        if self.agent_kill_at == NEVER:
            self.link.flush()
            self.agent.signal(signal.SIGTERM)
            self.agent.signal(signal.SIGCONT)
            self.agent_kill_at = now + AGENT_END_MS_MAX
        elif self.agent_kill_at <= now:
            self.agent.signal(signal.SIGKILL)
            self.agent_kill_at = now + AGENT_END_MS_MAX

    def _is_over(self, now: int) -> bool:
        return self.agent_kill_at != NEVER and not self.agent.pid

    def close(self) -> None:
        """Leave nothing behind but logs and what runs have written."""
        self.link.close()
        self.runs.spares.clear()

    def kill_all(self) -> None:
        """The last resort: see Runs.kill_all."""
        self.runs.kill_all()
        self.agent.signal(signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """The whole life of a keeper; returns its exit code."""
    if sys.getfilesystemencoding() != "utf-8":  # names and arguments are passed on byte by byte
        os.execv(sys.executable, [sys.executable, "-X", "utf8", "-I", "-S", *sys.argv])
    options = parse(arguments)
    os.makedirs(options.dir, mode=0o700, exist_ok=True)
    directory = os.path.realpath(options.dir)
    _own_descriptors()
    lock_fd = lock(directory)
    if lock_fd < 0:
        return 2
    killed = keeper_proc.kill_leftovers(directory)
    if killed:
        say(f"{killed} processes of an earlier keeper were killed")
    keeper = Keeper(options, directory)
    try:
        keeper.run()
    except BaseException:
        keeper.kill_all()
        raise
    keeper.close()
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="keeper", description="Keeps an agent and its workload processes running.")
    parser.add_argument("--dir", required=True, help="for the socket and the lock; one keeper each")
    parser.add_argument("--agent-log", default="", help="where the agent's output goes; default: the keeper's own")
    parser.add_argument("--agent-silence-ms", type=int, default=AGENT_SILENCE_MS, help="a longer silence is a hang")
    parser.add_argument("--grace-ms", type=int, default=GRACE_MS, help="between TERM and KILL when the keeper ends")
    parser.add_argument("agent", nargs="+", metavar="AGENT_ARGV")
    return parser.parse_args(arguments)


def lock(directory: str) -> int:
    """One keeper per directory, for as long as it lives. The descriptor stays open; -1: another one has it."""
    fd = os.open(f"{directory}/keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another keeper (pid {os.read(fd, 20).decode().strip() or 'unknown'}) holds {directory}")
        os.close(fd)
        return -1
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _own_descriptors() -> None:
    """0 is /dev/null for us and all our children; 1 and 2 exist; nothing else that we were given is passed on."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for fd in (1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(null, fd)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def now_ms() -> int:
    """CLOCK_MONOTONIC, which the agent's own clock is as well."""
    return time.monotonic_ns() // 1_000_000
