"""The system calls of slots that Python's standard library lacks, through the C library. Each raises OSError."""

import ctypes
import os

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = (
    0x0002_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID = 1, 2

_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_SYS_OPEN_TREE, _SYS_MOUNT_SETATTR = 428, 442  # the same on every architecture, as all calls from 424 on
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 28, 38
_PR_SET_CHILD_SUBREAPER = 36
_NOROOT_LOCKED = 0b11  # an execve as user 0 gets no capabilities
_CAPABILITIES_MAX = 64

libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare(flags: int) -> None:
    checked(libc.unshare(flags), "unshare")


def enter(namespace: int) -> None:
    """That of an open file of /proc/PID/ns. One of processes is for children."""
    checked(libc.setns(namespace, 0), "setns")


def adopt() -> None:
    """Become the parent of what our children leave behind."""
    checked(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    names = [name.encode(errors="surrogateescape") or None for name in (source, target, kind)]
    checked(libc.mount(*names, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def unmount(target: str) -> None:
    checked(libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def set_mount(path: str, add: int = 0, clear: int = 0, *, recursive: bool = False) -> None:
    attributes = _MountAttr(add, clear, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    at = ctypes.c_int(-100)
    result = libc.syscall(_SYS_MOUNT_SETATTR, at, os.fsencode(path), flags, ctypes.byref(attributes), size)
    checked(result, f"mount_setattr {path}")


def writable_view(path: str) -> int:
    """A descriptor of the directory that stays writable when its mount becomes read-only."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC)
    return checked(libc.syscall(_SYS_OPEN_TREE, ctypes.c_int(-100), os.fsencode(path), flags), f"open_tree {path}")


def become(user: int, group: int, saved: int) -> None:
    """Real and effective ids; `saved` is the way back."""
    if saved == user:  # back: the user first, as only that may set the group
        checked(libc.setresuid(user, user, saved), "setresuid")
        checked(libc.setresgid(group, group, saved), "setresgid")
    else:
        checked(libc.setresgid(group, group, saved), "setresgid")
        checked(libc.setresuid(user, user, saved), "setresuid")


def die_with_parent() -> None:
    """SIGKILL when the parent ends. Every change of user undoes it."""
    checked(libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")


def give_up_privileges() -> None:
    """Nothing that is started from here on has a capability or gets one. The caller keeps its own."""
    checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    for number in range(_CAPABILITIES_MAX):
        if libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0 and ctypes.get_errno() == 22:  # no such capability
            break
    checked(libc.prctl(_PR_SET_SECUREBITS, _NOROOT_LOCKED, 0, 0, 0), "securebits")
    checked(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
