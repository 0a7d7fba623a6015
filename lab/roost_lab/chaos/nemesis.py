"""The nemesis: it carries out the planned faults, and says of each what it did or why it cannot be done here."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from roost.client.errors import ApiError, Unreachable
from roost_lab.chaos.cluster import Cluster, Program, Server
from roost_lab.chaos.plan import Fault
from roost_lab.chaos.proxy import Proxy

# Python runs this at the start of a server. libfaketime would also change how long threads sleep.
CLOCK = """
import time
wall_ns, offset_ns = time.time_ns, {} * 10**9
time.time_ns = lambda: wall_ns() + offset_ns
time.time = lambda: time.time_ns() / 1e9
"""
ALONE_JUMP_S = 3_600
SHARED_JUMP_S = 1  # the clocks of servers on one store may differ by this much

Tell = Callable[[str], None]
P = TypeVar("P", bound=Program)


class FaultDone(msgspec.Struct):
    fault: Fault
    target: str = ""
    cannot: str = ""


class CannotBeDone(Exception):
    """This machine, or this user, cannot do such a fault."""


class Nemesis:
    """All in one thread: a child of Roost dies with the thread that started it, so that none is left behind."""

    def __init__(self, cluster: Cluster, tell: Tell) -> None:
        self._cluster = cluster
        self._tell = tell
        self._busy: list[Program] = []
        self.done: list[FaultDone] = []

    def run(self, faults: Sequence[Fault]) -> None:
        """Begin and end each fault in its time: they overlap. All have ended when this returns, also on an error."""
        began = time.monotonic()
        waiting = sorted(faults, reverse=True)
        with contextlib.ExitStack() as all_faults:
            active: list[tuple[float, contextlib.ExitStack]] = []
            while waiting or active:
                begin_s = waiting[-1].at_s if waiting else float("inf")
                end_s = min((end_s for end_s, _ in active), default=float("inf"))
                time.sleep(max(0.0, began + min(begin_s, end_s) - time.monotonic()))
                if begin_s < end_s:
                    fault = waiting.pop()
                    stack = all_faults.enter_context(contextlib.ExitStack())
                    self._begin(fault, stack)
                    active.append((fault.at_s + fault.for_s, stack))
                else:
                    over = min(active, key=lambda item: item[0])
                    active.remove(over)
                    over[1].close()

    def _begin(self, fault: Fault, stack: contextlib.ExitStack) -> None:
        done = FaultDone(fault)
        self.done.append(done)
        try:
            stack.enter_context(getattr(self, f"_{fault.kind}")(fault, done))
        except CannotBeDone as reason:
            done.cannot = str(reason)
        except (ApiError, Unreachable) as error:
            done.cannot = f"no server could be asked: {error}"
        self._tell(f"{fault} ({done.target})" if not done.cannot else f"{fault.kind} cannot be done: {done.cannot}")

    # servers

    @contextlib.contextmanager
    def _kill_server(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        with self._server(fault, done) as server:
            server.end()
            yield
            server.start()

    @contextlib.contextmanager
    def _stop_server(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        with self._server(fault, done) as server:
            server.send(signal.SIGSTOP)
            yield
            server.send(signal.SIGCONT)

    @contextlib.contextmanager
    def _full_disk(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        with self._server(fault, done) as server:
            if server.disk.cannot:
                raise CannotBeDone(f"no small disk could be mounted: {server.disk.cannot}")
            with server.disk.full():
                yield
            if server.ended_by_itself():  # it was just starting; a service manager would start it again
                server.end()
                server.start()

    @contextlib.contextmanager
    def _clock_jump(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        """The server is killed and comes back with another time."""
        most_s = SHARED_JUMP_S if len(self._cluster.servers) > 1 else ALONE_JUMP_S
        offset_s = most_s if fault.target % 2 else -most_s
        with self._server(fault, done) as server:
            server.end()
            yield
            code = self._cluster.folder / f"clock{offset_s:+d}" / "sitecustomize.py"
            code.parent.mkdir(exist_ok=True)
            code.write_text(CLOCK.format(offset_s))
            server.start(PYTHONPATH=str(code.parent))

    @contextlib.contextmanager
    def _hand_over(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        with self._cluster.client() as client:
            done.target = f"to {client.servers.transfer_leader().name}"
        yield

    # connections

    @contextlib.contextmanager
    def _cut_agents(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        """Neither agents nor other servers reach the server at its advertised address."""
        with self._server(fault, done) as server, _cut(server.proxies):
            yield

    @contextlib.contextmanager
    def _cut_store(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        with self._server(fault, done) as server, _cut(server.store_proxies):
            yield

    @contextlib.contextmanager
    def _store_outage(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        done.target = "store"
        with self._cluster.store.outage(fault.target):
            yield

    # nodes

    @contextlib.contextmanager
    def _kill_agent(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        with self._node(fault, done) as node:
            for pid in agents_of(node.pid):
                send_signal(pid, signal.SIGKILL)
            yield

    @contextlib.contextmanager
    def _stop_agent(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        with self._node(fault, done) as node:
            stopped = agents_of(node.pid)
            for pid in stopped:
                send_signal(pid, signal.SIGSTOP)
            yield
            for pid in stopped:
                send_signal(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def _crash_node(self, fault: Fault, done: FaultDone) -> Iterator[None]:
        """All processes of the node end at once, as if it had lost power."""
        with self._node(fault, done) as node:
            node.send(signal.SIGSTOP)  # it starts nothing while its children are counted
            for pid in descendants(node.pid):
                send_signal(pid, signal.SIGKILL)
            node.end()
            yield
            node.start()

    def _server(self, fault: Fault, done: FaultDone) -> contextlib.AbstractContextManager[Server]:
        return self._held(self._cluster.servers, "servers", fault, done)

    def _node(self, fault: Fault, done: FaultDone) -> contextlib.AbstractContextManager[Program]:
        return self._held(self._cluster.agents, "nodes", fault, done)

    @contextlib.contextmanager
    def _held(self, programs: Sequence[P], noun: str, fault: Fault, done: FaultDone) -> Iterator[P]:
        """One fault at a time has a process."""
        free = [program for program in programs if program not in self._busy]
        if not free:
            raise CannotBeDone(f"all {noun} have another fault")
        program = free[fault.target % len(free)]
        done.target = program.name
        self._busy.append(program)
        try:
            yield program
        finally:
            self._busy.remove(program)


@contextlib.contextmanager
def _cut(proxies: Sequence[Proxy]) -> Iterator[None]:
    for proxy in proxies:
        proxy.cut()
    yield
    for proxy in proxies:
        proxy.heal()


def agents_of(keeper: int) -> list[int]:
    return [pid for pid in descendants(keeper) if b"roost.agent" in _command_of(pid)]


def descendants(root: int) -> list[int]:
    found: list[int] = []
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        found += [pid] if pid != root else []
    return found


def _command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def send_signal(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)
