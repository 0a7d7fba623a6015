"""A slot: process 1 of namespaces of its own, which starts the processes of one run after another and tells their ends.

Its runs have another user, or no privileges; nothing they do can reach it. It ends with the keeper, and everything in
its namespaces ends with it.
"""

import os
import resource
import select
import signal
import socket
import time
from contextlib import suppress

from roost.keeper.slots import messages, seccomp, system
from roost.keeper.slots.view import View
from roost.keeper.spawn import SpawnRefused, ignored_signals, start
from roost.keeper.usage import cpu_s_of, io_of

HOLD_MS = 2  # a run that ends this soon is reported in one message
STEP_LOOK_S = 0.001  # between looks at what is left of a step, where its run goes on
OOM_CHOOSE_FIRST = b"500"  # where memory is short in the slot: its runs, not itself


class SlotSpec:
    """What a slot is made for; marshal carries it as a tuple."""

    def __init__(self, user: int, group: int, home: str, hidden: list[str], readable: list[str], pids_max: int) -> None:
        self.user = user
        self.group = group
        self.home = home  # the directory of work directories
        self.hidden = hidden
        self.readable = readable
        self.pids_max = pids_max  # by rlimit, where no cgroup does it; 0: not here

    def packed(self) -> tuple[object, ...]:
        return (self.user, self.group, self.home, self.hidden, self.readable, self.pids_max)


class Slot:
    def __init__(self, link: socket.socket, spec: SlotSpec) -> None:
        self.link = link
        self.user, self.group = spec.user, spec.group
        self.is_root = os.geteuid() == 0
        for number in (signal.SIGINT, signal.SIGCHLD):  # without a handler, nothing from inside reaches process 1
            signal.signal(number, signal.SIG_DFL)
        self.ignored = ignored_signals()
        view = self.view = View(spec.home, spec.hidden, spec.readable, self.user, is_root=self.is_root)
        self.oom = view.renew_proc(self.user)
        self.oom_own = os.read(self.oom, 16).strip()
        if spec.pids_max:
            _, most = resource.getrlimit(resource.RLIMIT_NPROC)
            resource.setrlimit(resource.RLIMIT_NPROC, (min(spec.pids_max, most) if most > 0 else spec.pids_max, most))
        if self.is_root:
            os.setgroups([])
        system.give_up_privileges()
        if seccomp.is_known():
            seccomp.install()
        self.wake, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.pid = 0  # of the main process of the current step; not waited for yet, so its group is ours to signal
        self.is_new = True  # the next step is the first of a run
        self.children = resource.getrusage(resource.RUSAGE_CHILDREN)  # what those before this step have used
        self.poll = select.poll()
        self.poll.register(link, select.POLLIN)
        self.poll.register(self.wake, select.POLLIN)

    def serve(self) -> None:
        """Until the keeper is gone."""
        while True:
            message, files = messages.receive(self.link)
            if message[0] == "start":
                self._run(message, files)
            elif message[0] == "clear":
                self._end_all(0)
                self._clear()
                messages.send(self.link, ("cleared",))
            # a signal for a process that has ended meanwhile comes too late

    def _run(self, message: tuple[object, ...], files: list[int]) -> None:
        """("start", argv, env, place, is_last, ignore_failure): one step."""
        _, argv, env, place, is_last, ignore_failure = message
        try:
            self._start(argv, env, place, files)  # type: ignore[arg-type]
        except (SpawnRefused, OSError) as error:
            reason = str(error) if isinstance(error, SpawnRefused) else f"{error.filename or place}: {error.strerror}"
            messages.send(self.link, ("refused", reason))
            return
        finally:
            for fd in files:
                os.close(fd)
        self._follow()
        signal_group(self.pid, signal.SIGKILL)
        _, status, main = os.wait4(self.pid, 0)
        group, self.pid = self.pid, 0
        code = os.waitstatus_to_exitcode(status)
        is_over = bool(is_last or (code and not ignore_failure))
        if not is_over:
            self._end_group(group, code)
        else:
            self._end_all(code)
            if not self.view.is_empty():  # what is there counts for the limits of the next run
                self._clear()
        messages.send(self.link, ("over", code, is_over, *self._used(main)))
        if is_over:
            self._rest()

    def _used(self, main: resource.struct_rusage) -> tuple[float, int, int, int, int]:
        """Of a step, as KeeperUsage.add takes it: of all processes, but the memory of the main one and its own."""
        before, self.children = self.children, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = cpu_s_of(self.children) - cpu_s_of(before)
        own_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the count of a child begins with it
        memory_max = main.ru_maxrss * 1024 if main.ru_maxrss > own_rss else 0
        (read, written), (read_before, written_before) = io_of(self.children), io_of(before)
        return cpu_s, memory_max, own_rss * 1024, read - read_before, written - written_before

    def _start(self, argv: list[str], env: dict[str, str], place: str, files: list[int]) -> None:
        """The user is changed for the moment of the birth: a child has that of its parent. There is one thread."""
        if self.is_new:
            system.unshare(system.CLONE_NEWIPC)
            self.is_new = False
        self.view.enter(place)
        os.pwrite(self.oom, OOM_CHOOSE_FIRST, 0)
        try:
            if self.is_root:
                system.become(self.user, self.group, 0)
            self.pid = start(argv, env, files[0], files[-1], self.ignored)
        finally:
            if self.is_root:
                system.become(0, 0, 0)
                system.die_with_parent()
            os.pwrite(self.oom, self.oom_own, 0)

    def _follow(self) -> None:
        """Carry out orders until the main process has ended."""
        is_reported = False
        while True:
            ready = dict(self.poll.poll(None if is_reported else HOLD_MS))
            if not ready:
                messages.send(self.link, ("started",))
                is_reported = True
            if self.wake in ready:
                os.read(self.wake, 4096)
                if self._reap():
                    return
            if self.link.fileno() in ready:
                message, _ = messages.receive(self.link)
                if message[0] == "signal":
                    signal_group(self.pid, int(message[1]))  # type: ignore[call-overload]

    def _reap(self) -> bool:
        """Take in orphans. True: the main process has ended; it is left as it is, so that its number stays its own."""
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid == self.pid:
                return True
            os.waitpid(found.si_pid, 0)
        return False

    def _end_all(self, code: int) -> None:
        """Every process here. Where there are some, the end of the main one is reported first."""
        is_reported = False
        while True:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                break
            if not is_reported:
                messages.send(self.link, ("exited", code))
                is_reported = True
            take_in_all()
        take_in_all()

    def _end_group(self, group: int, code: int) -> None:
        """What is left of a step whose run goes on."""
        is_reported = False
        while signal_group(group, signal.SIGKILL):
            if not is_reported:
                messages.send(self.link, ("exited", code))
                is_reported = True
            self._reap()
            time.sleep(STEP_LOOK_S)

    def _clear(self) -> None:
        """Nothing of a run stays, whose processes have ended: files, queues of messages."""
        self._rest()
        self.view.clear()

    def _rest(self) -> None:
        self.view.leave()
        self.is_new = True


def signal_group(group: int, number: int) -> bool:
    """False: it is gone."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def take_in_all() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
