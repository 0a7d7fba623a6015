"""Starts of /bin/true: plain ones, and in a slot; blocks in turn. Prints CPU seconds of one start of both.

`python -m roost_lab.bench.isolated_starts COUNT`: a process of its own, because a slot is forked from it.
"""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path

from roost.keeper import processes
from roost.keeper.cgroup import detect, prepare
from roost.keeper.slots import messages
from roost.keeper.slots.handle import SlotGroup
from roost.keeper.slots.slot import SlotSpec
from roost.keeper.slots.zygote import make

BLOCK = 36
PROGRAM = "/bin/true"
USER = 1_900_000_000
ENVIRONMENT = {f"VARIABLE_{number}": "value" for number in range(20)} | {"PATH": "/usr/bin:/bin"}
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class IsolatedStarts:
    def __init__(self, home: str) -> None:
        self.place = f"{home}/1"
        os.mkdir(self.place, 0o700)
        user, group = (USER, USER) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        os.chown(self.place, user, group)
        self.link, theirs = messages.pair()
        self.group = SlotGroup(prepare(detect()), f"roost-bench-{os.getpid()}")
        with theirs:
            make(theirs, self.group.dirs, SlotSpec(user, group, home, [], [], 0), (self.link,))
        self.pid = self._wait_for("born")
        self._wait_for("ready")

    def run(self, files: tuple[int, int]) -> None:
        start = ("start", [PROGRAM], ENVIRONMENT, self.place, True, False)
        messages.send(self.link, start, files)
        self._wait_for("over")

    def cpu_s(self) -> float:
        """Of the slot and of what has ended in it."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) * TICK_S

    def end(self) -> None:
        self.link.close()
        os.waitpid(self.pid, 0)
        self.group.remove()

    def _wait_for(self, kind: str) -> int:
        while True:
            message, _ = messages.receive(self.link)
            if message[0] in ("failed", "refused"):
                raise RuntimeError(str(message[1]))
            if message[0] == kind:
                return int(str(message[1])) if len(message) > 1 else 0


def main(count: int) -> None:
    processes.adopt_orphans()  # as a keeper: a slot is forked twice
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    plain = isolated = 0.0
    with tempfile.TemporaryDirectory(prefix="roost-bench-", dir=Path.home()) as home:  # not in /tmp, as installed
        os.chmod(home, 0o711)
        starts = IsolatedStarts(home)
        for _ in range(BLOCK):
            starts.run((null, null))
        slot_s = starts.cpu_s()
        for _ in range(count // BLOCK):
            before = own_cpu_s()
            for _ in range(BLOCK):
                os.waitpid(os.posix_spawn(PROGRAM, [PROGRAM], ENVIRONMENT, file_actions=actions, setsid=True), 0)
            between = own_cpu_s()
            for _ in range(BLOCK):
                starts.run((null, null))
            plain, isolated = plain + between - before, isolated + own_cpu_s() - between
        isolated += starts.cpu_s() - slot_s
        starts.end()
    done = count // BLOCK * BLOCK
    print(json.dumps([plain / done, isolated / done]))


def own_cpu_s() -> float:
    """Of this process and its children that were waited for; the slot was not."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


if __name__ == "__main__":
    main(int(sys.argv[1]))
