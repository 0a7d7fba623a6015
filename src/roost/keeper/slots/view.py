"""The file system as a slot's runs see it: the machine read-only, private places to write, and much of it hidden.

All of it is made once per slot. Each run adds one mount, its work directory, and takes it away again.
"""

import os
import pwd
import stat
from contextlib import suppress

from roost.keeper.slots.system import (
    ATTR_NOSUID,
    ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    mount,
    set_mount,
    unmount,
    writable_view,
)

# Secrets of users, and sockets of services that obey every connection. Work directories below them stay visible.
HIDDEN = ("/home", "/run", "/sys/fs/cgroup", "/dev/mqueue")
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
RESOLVER = "/etc/resolv.conf"  # may be a link into /run
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {
    "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx",
}  # fmt: skip
_PLAIN = MS_NOSUID | MS_NODEV
_COVER = "mode=0755,size=1m,nr_inodes=4096"  # holds names of directories, and two small files


class View:
    """`home`: the directory that has the work directories; of them, only the one of the current run is to be seen."""

    def __init__(self, home: str, hidden: list[str], readable: list[str], user: int, *, is_root: bool) -> None:
        self.home = home
        self.is_root = is_root
        self.place = ""  # the work directory that is mounted
        self.covers: list[str] = []
        self.private: list[str] = []  # places of its own to write, cleared after each run
        mount("", "/", flags=MS_PRIVATE | MS_REC)
        mount(home, home, flags=MS_BIND | MS_REC)
        set_mount("/", add=ATTR_RDONLY | ATTR_NOSUID, recursive=True)
        set_mount(home, clear=ATTR_RDONLY)
        self.source = os.open(home, os.O_PATH | os.O_DIRECTORY)
        shown = {path: os.open(path, os.O_PATH) for path in readable if os.path.exists(path)}
        resolver = os.path.realpath(RESOLVER)
        names = _contents(resolver)
        users = _contents("/etc/passwd")
        if is_root and not user:
            self._few_devices()
        self._hide(sorted({*hidden, *HIDDEN, *_homes(), *_closed(home)}))
        for path, fd in shown.items():
            self._show(path, fd)
        if any(resolver.startswith(f"{cover}/") for cover in self.covers):
            self._write(resolver, names)
        self._name_user(user, users)
        os.makedirs(home, exist_ok=True)
        mount("tmpfs", home, "tmpfs", _PLAIN, "mode=0711,size=1m")
        self.target = writable_view(home)
        set_mount(home, add=ATTR_RDONLY)
        for cover in self.covers:
            set_mount(cover, add=ATTR_RDONLY)
        self._private_terminals()

    def renew_proc(self, user: int) -> int:
        """In the new PID namespace. For user 0 read-only: its files there belong to that user. Returns an open
        oom_score_adj of our own."""
        mount("proc", "/proc", "proc", _PLAIN | MS_NOEXEC)
        view = writable_view("/proc")
        own = os.open("self/oom_score_adj", os.O_RDWR, dir_fd=view)
        os.close(view)
        if not user:
            set_mount("/proc", add=ATTR_RDONLY)
        return own

    def enter(self, place: str) -> None:
        """Have a work directory where it is outside, and go there."""
        name = os.path.basename(place)
        if place != self.place:
            self.leave()
            os.mkdir(name, 0o755, dir_fd=self.target)
            os.fchdir(self.source)
            mount(name, place, flags=MS_BIND | MS_REC)
            self.place = place
        os.chdir(place)

    def leave(self) -> None:
        os.chdir("/")
        if self.place:
            unmount(self.place)
            os.rmdir(os.path.basename(self.place), dir_fd=self.target)
            self.place = ""

    def is_empty(self) -> bool:
        """Whether there is nothing in the private places. The size of a tmpfs directory counts its entries."""
        return not any(os.stat(place).st_size for place in self.private)

    def clear(self) -> None:
        """Nothing of a run stays in the private places. No process of it is left, so nothing changes meanwhile."""
        for place in self.private:
            for name in os.listdir(place) if os.stat(place).st_size else ():
                _remove(f"{place}/{name}")

    def _hide(self, paths: list[str]) -> None:
        for path in PRIVATE:
            if os.path.isdir(path) and not os.path.islink(path):
                mount("tmpfs", path, "tmpfs", _PLAIN, "mode=1777")
                self.private.append(path)
        for path in dict.fromkeys(map(os.path.realpath, paths)):
            if os.path.isdir(path) and path != "/" and not self._is_covered(path):
                mount("tmpfs", path, "tmpfs", _PLAIN, _COVER)
                self.covers.append(path)
            elif os.path.exists(path) and not os.path.isdir(path):
                mount("/dev/null", path, flags=MS_BIND)

    def _is_covered(self, path: str) -> bool:
        return any(path.startswith(f"{cover}/") for cover in self.covers)

    def _show(self, path: str, fd: int) -> None:
        """Again what was there before the covers, read-only."""
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.makedirs(path, exist_ok=True)
            os.fchdir(fd)
            mount(".", path, flags=MS_BIND | MS_REC)
            set_mount(path, add=ATTR_RDONLY, recursive=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
            mount(f"/proc/self/fd/{fd}", path, flags=MS_BIND)
        os.close(fd)
        os.chdir("/")

    def _write(self, path: str, data: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(fd, data)
        os.fchmod(fd, 0o644)
        os.close(fd)

    def _name_user(self, user: int, users: bytes) -> None:
        """A line for a user without a name: without one, git and ssh refuse to work."""
        with suppress(KeyError):
            pwd.getpwuid(user)
            return
        draft = "/tmp/.passwd"
        self._write(draft, users.rstrip(b"\n") + f"\nroost-{user}:x:{user}:{user}::/nonexistent:/bin/sh\n".encode())
        mount(draft, "/etc/passwd", flags=MS_BIND)
        os.unlink(draft)
        set_mount("/etc/passwd", add=ATTR_RDONLY)

    def _few_devices(self) -> None:
        """For user 0, who owns the disks of the machine: its own mode bits keep it from nothing."""
        kept = {name: os.open(f"/dev/{name}", os.O_PATH) for name in DEVICES if os.path.exists(f"/dev/{name}")}
        mount("tmpfs", "/dev", "tmpfs", _PLAIN, _COVER)
        self.covers.append("/dev")
        for name in ("pts", "shm"):
            os.mkdir(f"/dev/{name}")
        for name, target in LINKS.items():
            os.symlink(target, f"/dev/{name}")
        for name, fd in kept.items():
            os.close(os.open(f"/dev/{name}", os.O_WRONLY | os.O_CREAT, 0o600))
            mount(f"/proc/self/fd/{fd}", f"/dev/{name}", flags=MS_BIND)
            os.close(fd)

    def _private_terminals(self) -> None:
        """Those of the machine may be of the same user."""
        if os.path.isdir("/dev/pts"):
            mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
            if os.path.exists("/dev/ptmx") and not os.path.islink("/dev/ptmx"):
                mount("/dev/pts/ptmx", "/dev/ptmx", flags=MS_BIND)


def _homes() -> list[str]:
    """Those of root and of our own user, wherever they are."""
    found = []
    for user in {0, os.geteuid()}:
        with suppress(KeyError):
            found.append(pwd.getpwuid(user).pw_dir)
    return found


def _closed(home: str) -> list[str]:
    """Directories on the way to the work directories that other users may not pass: the cover can be passed."""
    found = []
    path = os.path.dirname(home)
    while path != "/":
        if not os.stat(path).st_mode & stat.S_IXOTH:
            found.append(path)
        path = os.path.dirname(path)
    return found


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 19)
    except OSError:
        return b""


def _remove(path: str) -> None:
    """Whatever it is; a mount point stays, and so does the way to it."""
    if os.path.islink(path) or not os.path.isdir(path):
        with suppress(OSError):
            os.unlink(path)
        return
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            with suppress(OSError):
                os.unlink(f"{folder}/{name}")
        for name in folders:
            with suppress(OSError):
                (os.unlink if os.path.islink(f"{folder}/{name}") else os.rmdir)(f"{folder}/{name}")
    with suppress(OSError):
        os.rmdir(path)
