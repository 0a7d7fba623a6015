"""The parent of one command inside a run: starts it, reports how it ended, and ends all that it has started.

It lives outside of the run, as a child of the agent. When its link ends (the client left, or the agent died), so does
the command.
"""

import os
import select
import signal
import socket
import time
from contextlib import suppress

from roost.keeper import processes
from roost.keeper.commands.entry import CommandOrder, become, enter
from roost.keeper.run import signal_group
from roost.keeper.slots import messages, system
from roost.keeper.slots.messages import Broken
from roost.keeper.spawn import SpawnRefused

ENDING_LOOK_S = 0.002
ENDING_LOOKS_MAX = 1_000  # two seconds: longer means a process stuck in the kernel
ERROR = b"!"


def serve(link: socket.socket) -> None:
    """("start", order) with its files; then ("signal", number) until the command has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        message, files = messages.receive(link)
    except Broken:
        return
    order = CommandOrder(*message[1])  # type: ignore[misc]
    wake = _wake_fd()
    system.adopt()
    pid, error = _start(order, link, files)
    for fd in files:
        os.close(fd)
    with suppress(Broken):
        if error:
            messages.send(link, ("failed", error))
            return
        messages.send(link, ("started", pid))
    code = _follow(pid, link, wake)
    _end_all(pid, order.id)
    with suppress(ChildProcessError):
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(Broken):
        messages.send(link, ("ended", code))


def _start(order: CommandOrder, link: socket.socket, files: "list[int]") -> "tuple[int, str]":
    """Two forks: the process between enters the namespaces and ends, so that the command is our child."""
    reads, writes = os.pipe()
    waits, goes = os.pipe()
    between = os.fork()
    if not between:
        _be_between(order, link, files, writes, waits, goes)
    os.close(writes)
    os.close(waits)
    answer = os.read(reads, 4096)
    os.close(reads)
    os.waitpid(between, 0)
    os.close(goes)  # the command goes on: we are its parent by now
    if answer.isdigit():
        return int(answer), ""
    return 0, answer.removeprefix(ERROR).decode(errors="replace") or "the command could not be started"


def _be_between(
    order: CommandOrder, link: socket.socket, files: "list[int]", writes: int, waits: int, goes: int
) -> None:
    try:
        enter(order)
        pid = os.fork()
        if not pid:
            os.close(writes)
            os.close(goes)
            os.read(waits, 1)
            _be_command(order, link, files)
        os.write(writes, str(pid).encode())
    except OSError as error:
        os.write(writes, ERROR + f"{error.filename or 'its run'}: {error.strerror}".encode())
    finally:
        os._exit(0)


def _be_command(order: CommandOrder, link: socket.socket, files: "list[int]") -> None:
    try:
        become(order, link, files)
    except (SpawnRefused, OSError, Broken) as error:
        reason = f"{error.filename or order.argv[0]}: {error.strerror}" if isinstance(error, OSError) else str(error)
        with suppress(Broken):
            messages.send(link, ("failed", reason))
    finally:
        os._exit(127)


def _follow(pid: int, link: socket.socket, wake: int) -> int:
    """Until the command has ended, or its link is gone."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if wake in ready:
            os.read(wake, 4096)
            if _reap(pid):
                return 0
        if link.fileno() in ready:
            try:
                message, _ = messages.receive(link)
            except Broken:
                return 0
            if message[0] == "signal":
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, int(message[1]))  # type: ignore[call-overload]


def _reap(pid: int) -> bool:
    """Take in what was left to us. True: the command has ended; it is left as it is, so that its number is its own."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        if found is None:
            return False
        if found.si_pid == pid:
            return True
        os.waitpid(found.si_pid, 0)


def _end_all(pid: int, id: str) -> None:
    """KILL the command, its group, what it left to us, and what carries its mark: in a slot, that is left to others."""
    for count in range(ENDING_LOOKS_MAX):
        signal_group(pid, signal.SIGKILL)
        others = [child for child in processes.children() or () if child != pid]
        if count % 50 == 0:
            others += _marked(id, pid)
        for child in others:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        is_over = _reap(pid)
        if is_over and not others:
            return
        time.sleep(ENDING_LOOK_S)


def end_marked(id: str) -> None:
    """What carries the mark of a command."""
    for pid in _marked(id, os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _marked(id: str, own: int) -> "list[int]":
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    mark = processes.COMMAND_MARK
    return [pid for pid in pids if pid != own and processes.find(processes.environment(pid), mark) == id]


def _wake_fd() -> int:
    wake, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake
