"""The keeper's slots: made when a run needs one, kept for the next run of the same project, ended when idle.

Nothing here waits for a slot. One that does not answer in time is killed from outside, and so is everything in it.
"""

import os
import resource
import select
import socket
import sys
from collections.abc import Callable

from roost.keeper import processes
from roost.keeper.cgroup import Cgroups
from roost.keeper.clock import NEVER
from roost.keeper.processes import log
from roost.keeper.rules import Rules
from roost.keeper.run import KeeperRun, lacks_limits
from roost.keeper.slots import messages
from roost.keeper.slots.handle import NO_LIMIT, SlotGroup, SlotHandle
from roost.keeper.slots.messages import Broken
from roost.keeper.usage import cpu_s_of, io_of

ANSWER_MS_MAX = 20_000  # for what takes milliseconds: a slot that is throttled may be slow, one that hangs is replaced
REST_MS_MAX = 2_000  # for what is left of a step after KILL; longer means a process that hangs in the kernel
IDLE_MS_MAX = 60_000
IDLE_LOOK_MS = 10_000
IDLE_MAX = 64  # two megabytes each
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")


class SlotPool:
    def __init__(
        self, rules: Rules, epoll: "select.epoll", cgroups: Cgroups, prefix: str, directory: str, hidden: list[str],
        readable: list[str], spawning: Callable[[], None], spawned: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.rules = rules
        self.epoll = epoll
        self.cgroups = cgroups
        self.prefix = prefix
        self.directory = directory
        self.hidden = [directory, *hidden]
        self.readable = readable
        self.spawning = spawning
        self.spawned = spawned
        self.by_fd: dict[int, SlotHandle] = {}
        self.by_pid: dict[int, SlotHandle] = {}
        self.idle: dict[SlotHandle, int] = {}  # since when, the oldest first
        self.due: dict[SlotHandle, int] = {}  # when an answer is due
        self.idle_look_at = NEVER
        self.made = 0
        self.maker: socket.socket | None = None  # the link of the process that makes slots
        self.maker_pid = 0
        self.dying: list[SlotGroup] = []

    # --- what the keeper's runs ask for

    def start(self, run: KeeperRun, now: int) -> str:
        """Begin a step. Returns why that cannot be; what comes of it, is reported to the rules."""
        assert run.isolation is not None
        slot = run.slot or self._take(run)
        if slot is None:
            try:
                slot = self._make(run.isolation.key(os.path.dirname(run.dir)), now)
            except (OSError, Broken) as error:
                return f"it cannot be isolated: {error}"
        slot.run_id = run.id
        run.slot = slot
        self._await(slot, now + ANSWER_MS_MAX)
        if slot.is_ready:
            self._send_start(slot, run, now)
        return ""

    def signal(self, run: KeeperRun, *numbers: int) -> None:
        if run.slot is not None and run.slot.is_ready:
            for number in numbers:
                self._send(run.slot, ("signal", int(number)))

    def kill(self, run: KeeperRun) -> None:
        """From outside, so that it does not depend on the slot. One that is not born yet is killed then."""
        if run.slot is not None:
            run.slot.kill()

    def finished(self, run: KeeperRun, now: int) -> None:
        """The slot of a run that has ended is for others, once it is clean."""
        slot, run.slot = run.slot, None
        if slot is None:
            return
        slot.run_id = ""
        if slot.is_killed or slot.fd not in self.by_fd:
            return
        if slot.is_clean or not slot.is_ready:
            self._leave(slot, now)
        else:
            slot.is_busy = True
            self._await(slot, now + ANSWER_MS_MAX)
            self._send(slot, ("clear",))

    # --- what happens by itself

    def read(self, ready: "dict[int, int]", now: int) -> None:
        for fd in [fd for fd in ready if fd in self.by_fd]:
            slot = self.by_fd[fd]
            try:
                while self.by_fd.get(fd) is slot:
                    message, _ = messages.receive(slot.link)
                    self._heard(slot, message, now)
            except BlockingIOError:
                pass
            except Broken:
                self._close(slot)
                if not slot.pid:
                    self._drop_maker()  # it has died with the order, or will soon
                    self._not_made(slot, "the process that makes slots has ended", now)

    def ended(self, pid: int, used: resource.struct_rusage, status: int, now: int) -> bool:
        """A child was taken in. True: it was a slot, or made them."""
        if pid == self.maker_pid:
            self._drop_maker()
            return True
        slot = self.by_pid.pop(pid, None)
        if slot is None:
            return False
        if self.by_fd.get(slot.fd) is slot:
            self.read({slot.fd: 0}, now)  # its last messages
        self._close(slot)
        run = self.rules.live.get(slot.run_id)
        if run is None or run.slot is not slot:
            self._remove_group(slot)
            return True
        self._count_memory(slot, run)
        self._remove_group(slot)
        run.slot = None
        self._lost(run, slot, used, status, now)
        return True

    def tick(self, now: int) -> None:
        for slot in [slot for slot, at in self.due.items() if at <= now]:
            self._too_late(slot, now)
        if self.idle_look_at <= now:
            self.is_empty()
            for slot in [slot for slot, since in self.idle.items() if since + IDLE_MS_MAX <= now]:
                self._end(slot)
            self.idle_look_at = now + IDLE_LOOK_MS if self.idle or self.dying else NEVER

    def next_at(self) -> int:
        return min(self.idle_look_at, min(self.due.values(), default=NEVER))

    def kill_all(self) -> None:
        for slot in list(self.by_fd.values()):
            slot.kill()
        self._drop_maker()

    @property
    def pids(self) -> "set[int]":
        return {self.maker_pid, *self.by_pid}

    def is_empty(self) -> bool:
        self.dying = [group for group in self.dying if not (group.kill() and group.remove())]
        return not self.by_pid and not self.dying

    # --- one slot

    def _take(self, run: KeeperRun) -> SlotHandle | None:
        """The one that was used last: the others may end."""
        assert run.isolation is not None
        key = run.isolation.key(os.path.dirname(run.dir))
        slot = next((slot for slot in reversed(self.idle) if slot.key == key), None)
        if slot is not None:
            del self.idle[slot]
        return slot

    def _leave(self, slot: SlotHandle, now: int) -> None:
        self.due.pop(slot, None)
        if len(self.idle) >= IDLE_MAX:
            self._end(next(iter(self.idle)))
        self.idle[slot] = now
        self.idle_look_at = min(self.idle_look_at, now + IDLE_LOOK_MS)

    def _end(self, slot: SlotHandle) -> None:
        """An idle one: nothing is in it."""
        self.idle.pop(slot, None)
        slot.kill()

    def _make(self, key: tuple[str, int, int, str], now: int) -> SlotHandle:
        self.made += 1
        _, user, group_id, home = key
        os.makedirs(home, exist_ok=True)
        ours, theirs = messages.pair()
        group: SlotGroup | None = None
        with theirs:
            try:
                ours.setblocking(False)
                group = SlotGroup(self.cgroups, f"{self.prefix}slot-{self.made}")
                spec = (
                    user,
                    group_id,
                    home,
                    self.hidden,
                    self.readable,
                    0 if group.limits_pids else self.cgroups.pids_max,
                )
                self._order(("make", group.dirs, spec), theirs.fileno())
            except BaseException:
                ours.close()
                if group is not None:
                    group.remove()
                raise
        slot = SlotHandle(key, ours, group)
        self.by_fd[slot.fd] = slot
        self.epoll.register(slot.fd, select.EPOLLIN)
        return slot

    def _order(self, message: "tuple[object, ...]", link: int) -> None:
        """To the process that makes slots, which may have died since the last order. Raises Broken."""
        try:
            messages.send(self._maker(), message, (link,))
        except Broken:
            self._drop_maker()
            messages.send(self._maker(), message, (link,))

    def _maker(self) -> socket.socket:
        if self.maker is None:
            ours, theirs = messages.pair()
            ours.setblocking(False)
            argv = [sys.executable, "-X", "utf8", "-I", "-S", PROGRAM, "3"]
            env = {processes.MARK: self.directory, "PATH": os.defpath}
            with theirs:
                self.spawning()
                actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)]
                self.maker_pid = os.posix_spawn(argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=())
            self.spawned(self.maker_pid)
            self.maker = ours
        return self.maker

    def _drop_maker(self) -> None:
        if self.maker is not None:
            self.maker.close()
        self.maker, self.maker_pid = None, 0

    def _send_start(self, slot: SlotHandle, run: KeeperRun, now: int) -> None:
        argv, ignore_failure = run.steps[run.step]
        is_last = run.step + 1 == len(run.steps)
        self._limit(slot, run)
        if run.cause or lacks_limits(run):  # it was stopped while its slot was made, or may not begin
            self.rules.not_started(run, "" if run.cause else lacks_limits(run), now)
            return
        files = (run.log_fd, run.stderr_fd) if run.stderr else (run.log_fd,)
        slot.is_clean = False
        self._send(slot, ("start", argv, run.env, run.dir, is_last, ignore_failure), files)

    def _limit(self, slot: SlotHandle, run: KeeperRun) -> None:
        """The limits of the run, from its first step on."""
        group = slot.group
        if run.step or group is None:
            return
        wanted = run.limits or NO_LIMIT
        run.limits_said = f"some: {missing}" if (missing := self.cgroups.missing(*wanted)) else ""
        try:
            group.limit(*wanted)
            group.begin()
        except OSError as error:
            run.limits_said = f"none: {error.strerror}"

    def _send(self, slot: SlotHandle, message: "tuple[object, ...]", files: "tuple[int, ...]" = ()) -> None:
        try:
            messages.send(slot.link, message, files)
        except Broken:  # it is dead, or does not read: its end is reported when it is reaped
            slot.kill()

    def _await(self, slot: SlotHandle, at: int) -> None:
        self.due[slot] = at

    def _close(self, slot: SlotHandle) -> None:
        if self.by_fd.get(slot.fd) is slot:
            del self.by_fd[slot.fd]
            self.epoll.unregister(slot.fd)
            slot.link.close()
        self.idle.pop(slot, None)
        self.due.pop(slot, None)

    def _remove_group(self, slot: SlotHandle) -> None:
        if slot.group is not None and not slot.group.remove():
            self.dying.append(slot.group)
            self.idle_look_at = 0
        slot.group = None

    # --- what a slot says

    def _heard(self, slot: SlotHandle, message: "tuple[object, ...]", now: int) -> None:
        run = self.rules.live.get(slot.run_id)
        match message:
            case ("born", int(pid)):
                slot.pid = pid
                self.by_pid[pid] = slot
                if slot.is_killed:
                    slot.kill()
            case ("ready",):
                slot.is_ready = True
                if run is None:
                    self._leave(slot, now)
                else:
                    self._send_start(slot, run, now)
            case ("failed", str(text)):
                self._close(slot)
                self._not_made(slot, text, now)
            case ("cleared",):
                slot.is_busy, slot.is_clean = False, True
                self._leave(slot, now)
            case _:
                if run is not None:
                    self._of_run(slot, run, message, now)

    def _of_run(self, slot: SlotHandle, run: KeeperRun, message: "tuple[object, ...]", now: int) -> None:
        match message:
            case ("started",):
                self._began(slot, run, now)
            case ("refused", str(text)):
                self.due.pop(slot, None)
                self.rules.not_started(run, text, now)
            case ("exited", int(code)):
                self._began(slot, run, now)
                run.code, run.is_exited = code, True
                self._await(slot, now + REST_MS_MAX)
            case ("over", int(code), bool(is_clean), float(cpu_s), *others):
                self._began(slot, run, now)
                self.due.pop(slot, None)
                slot.is_clean = is_clean
                slot.reported.add(cpu_s, *others)  # type: ignore[arg-type]
                run.usage.add(cpu_s, *others)  # type: ignore[arg-type]  # numbers: both sides are of one release
                run.code = code
                self._count_memory(slot, run)
                self.rules.step_over(run, now)

    def _began(self, slot: SlotHandle, run: KeeperRun, now: int) -> None:
        if not run.pid:
            self.due.pop(slot, None)
            run.pid = slot.pid
            self.rules.started(run, now)

    def _count_memory(self, slot: SlotHandle, run: KeeperRun) -> None:
        if slot.group is not None and run.limits:
            run.oom = run.oom or slot.group.out_of_memory()
            run.usage.at_least(0.0, slot.group.memory_max())

    # --- what goes wrong

    def _too_late(self, slot: SlotHandle, now: int) -> None:
        """Kill it; if that does not help, go on without it: it is not used again."""
        if not slot.is_killed:
            run = self.rules.live.get(slot.run_id)
            if run is None or not run.is_exited:
                log(f"a slot (pid {slot.pid}) did not answer: killed")
            slot.kill()
            self._await(slot, now + REST_MS_MAX)
            return
        self.due.pop(slot, None)
        run = self.rules.live.get(slot.run_id)
        if not slot.pid:
            self._close(slot)
            self._drop_maker()
            self._not_made(slot, "it is not made in time", now)
        elif run is not None and run.slot is slot:
            run.slot = None
            run.cause = run.cause or "exited"  # no further step beside what is left
            self.rules.step_over(run, now, f"processes of slot {slot.pid} cannot be killed")

    def _not_made(self, slot: SlotHandle, error: str, now: int) -> None:
        self._remove_group(slot)
        run = self.rules.live.get(slot.run_id)
        if run is not None and run.slot is slot:
            run.slot = None
            self.rules.not_started(run, f"it cannot be isolated: {error}", now)

    def _lost(
        self, run: KeeperRun, slot: SlotHandle, used: resource.struct_rusage, status: int, now: int
    ) -> None:  # fmt: skip
        """A slot has ended with a run in it: killed by us, for want of memory, or by another."""
        before, (io_read, io_written) = slot.reported, io_of(used)
        cpu_s = max(0.0, cpu_s_of(used) - before.cpu_s)
        run.usage.add(cpu_s, 0, 0, max(0, io_read - before.io_read), max(0, io_written - before.io_written))
        if slot.is_clean:
            self.rules.not_started(run, "its slot has ended before it began", now)
            return
        self._began(slot, run, now)
        if not run.is_exited:
            run.code = -9
        how = os.waitstatus_to_exitcode(status)
        is_expected = slot.is_killed or run.oom
        error = "" if is_expected else f"its slot ended ({f'signal {-how}' if how < 0 else f'exit code {how}'})"
        self.rules.step_over(run, now, error)
