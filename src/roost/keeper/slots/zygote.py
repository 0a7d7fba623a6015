"""Makes slots: a small process that has loaded what a slot needs, and forks."""

import os
import signal
import socket
import sys

from roost.keeper.slots import messages, system
from roost.keeper.slots.messages import Broken
from roost.keeper.slots.slot import Slot, SlotSpec

NAMESPACES = system.CLONE_NEWNS | system.CLONE_NEWPID | system.CLONE_NEWIPC | system.CLONE_NEWUTS


def serve(link: socket.socket) -> None:
    """("make", cgroups, spec) with the slot's end of its link. Until the keeper is gone."""
    system.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the keeper decides when
    while True:
        try:
            message, files = messages.receive(link)
        except Broken:
            return
        _, groups, spec = message
        with socket.socket(fileno=files[0]) as own:
            make(own, groups, SlotSpec(*spec), (link,))  # type: ignore[arg-type, misc]


def make(link: socket.socket, groups: list[str], spec: SlotSpec, foreign: "tuple[socket.socket, ...]" = ()) -> None:
    """Start a slot at the other end of `link`; it reports there.

    Two forks: the process between enters the namespaces and ends, so that the slot becomes a child of the keeper, which
    reaps it and may signal it safely. The slot goes on only then: its parent is the one that it dies with.
    """
    waits, goes = os.pipe()
    between = os.fork()
    if between:
        os.close(waits)
        os.waitpid(between, 0)
        os.close(goes)
        return
    code = 1
    try:
        for other in foreign:
            other.close()
        os.close(goes)
        code = _become_slot(link, groups, spec, waits)
    except Broken:
        code = 0
    except BaseException as error:  # a defect: the keeper sees that the slot has ended
        print(f"slot: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _become_slot(link: socket.socket, groups: list[str], spec: SlotSpec, waits: int) -> int:
    try:
        _enter(groups)
        pid = os.fork()
        if pid:
            messages.send(link, ("born", pid))
            return 0
        os.read(waits, 1)
        os.close(waits)
        system.die_with_parent()
        slot = Slot(link, spec)
    except OSError as error:
        messages.send(link, ("failed", f"{error.filename or 'slot'}: {error.strerror}"))
        return 1
    messages.send(link, ("ready",))
    slot.serve()
    return 0


def _enter(groups: list[str]) -> None:
    """Cgroups first, while they can be seen. Without root, a user namespace in which we are ourselves."""
    for group in groups:
        with open(f"{group}/cgroup.procs", "wb", buffering=0) as file:
            file.write(b"0")
    user, group_id = os.geteuid(), os.getegid()
    if user == 0:
        system.unshare(NAMESPACES)
        return
    system.unshare(NAMESPACES | system.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group_id} {group_id} 1")):
        with open(f"/proc/self/{name}", "wb", buffering=0) as file:
            file.write(text.encode())
