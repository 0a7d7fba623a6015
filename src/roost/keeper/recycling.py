"""Empty work directories and log files of forgotten runs go to the next runs: renaming is cheaper than making.

On ext4: mkdir + rmdir 110 us, create + unlink 85 us, rename 7 us. Without it a task of /bin/true cost 0 to 68 % more
CPU in six runs (median 29 %), more the busier the disk was. `--recycle off` does without it.

A spare stays in its place until a run takes it over, or moves to `spare/` when no run did between two looks.
Nothing that a process could still hold is given to another run: a spare is ready only after a look showed that no
process of an ended run is left, a directory only if it is empty, and a log only if no other process has it open.
"""

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress

SPARES_MAX = 256  # of each kind: what 1,000 runs a second leave between two looks, with room
USERS_MAX = 64  # whose files are kept: more projects than that at once on a node are rare
DIR_MODE = 0o700
LOG_MODE = 0o600

# Without waiting: a log that is a pipe without a reader is an error, not a reason to hang. Never through a link: a run
# of the same user could have made it, and have another run's output written elsewhere.
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


class Spares:
    """Spares of one kind: path → open descriptor, -1 for a directory."""

    def __init__(self, home: str, is_unused: Callable[[str, int], bool], *, enabled: bool) -> None:
        self.home = home  # the beginning of the paths of stored spares
        self.is_unused = is_unused
        self.capacity = SPARES_MAX if enabled else 0
        self.count = 0
        self.new: dict[str, int] = {}  # dropped since the last look
        self.ready: dict[str, int] = {}  # in the place where the last run had them
        self.stored: dict[str, int] = {}

    def take(self, path: str) -> int | None:
        """Move a spare to `path` and return its descriptor; None: there is no spare, or the name is taken."""
        for pool in (self.new, self.ready):
            close(pool.pop(path, -1))  # the same name again: the file belongs to the run from now on
        pool = self.ready or self.stored
        if not pool or os.path.lexists(path):
            return None
        spare, fd = pool.popitem()
        return fd if moved(spare, path, fd) else None

    def drop(self, path: str, fd: int = -1) -> None:
        """A run no longer needs this file; one that holds something stays."""
        if len(self.new) < self.capacity:
            self.new[path] = fd
        else:
            discard(path, fd)

    def verify(self, *, clean: bool) -> bool:
        """After a look at the processes. Unless it was clean, nothing that was dropped before is used again.

        All checks are made here, for many at a time: that is a third of what each would cost at the next start.
        True when another look is wanted: something is still in its old place.
        """
        for path, fd in self.ready.items():
            self._store(path, fd)
        self.ready = {path: fd for path, fd in self.new.items() if clean and self.is_unused(path, fd)}
        for path in self.new.keys() - self.ready.keys():
            discard(path, self.new[path])
        self.new.clear()
        return bool(self.ready)

    def _store(self, path: str, fd: int) -> None:
        self.count += 1
        spare = f"{self.home}{self.count}"
        if len(self.stored) >= self.capacity:
            discard(path, fd)
        elif moved(path, spare, fd):
            self.stored[spare] = fd

    def clear(self) -> None:
        self.verify(clean=False)
        for path, fd in self.stored.items():
            discard(path, fd)
        self.stored.clear()


class RecycledFiles:
    """Those of one user are never used for another: what a user has set on them (an access list) stays theirs."""

    def __init__(self, home: str, *, enabled: bool) -> None:
        self.home = home
        self.enabled = enabled
        self.of_users: dict[int, tuple[Spares, Spares]] = {}  # directories and logs
        if enabled:
            os.makedirs(home, mode=0o700, exist_ok=True)
            for name in os.listdir(home):  # those of an earlier keeper: their users are unknown
                discard(f"{home}/{name}", -1)

    def make_dir(self, path: str, user: int, group: int) -> bool:
        """Have a directory at `path`; False: it was there before."""
        if self._spares(user)[0].take(path) is not None:
            return True
        try:
            os.mkdir(path, DIR_MODE)
        except FileExistsError:
            hand_over(path, user, group)
            return False
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.mkdir(path, DIR_MODE)
        hand_over(path, user, group)
        return True

    def open_log(self, path: str, user: int, group: int) -> int:
        """A descriptor at the end of the log; what is there already stays."""
        fd = self._spares(user)[1].take(path)
        if fd is not None:
            return fd
        try:
            fd = os.open(path, _LOG_FLAGS, LOG_MODE)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, _LOG_FLAGS, LOG_MODE)
        if user != os.geteuid() and stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchown(fd, user, group)
        return fd

    def drop_dir(self, path: str, user: int) -> None:
        self._spares(user)[0].drop(path)

    def drop_log(self, path: str, fd: int, user: int) -> None:
        self._spares(user)[1].drop(path, fd)

    def verify(self, *, clean: bool) -> bool:
        found = [spares.verify(clean=clean) for pair in self.of_users.values() for spares in pair]
        return any(found)

    def clear(self) -> None:
        for pair in self.of_users.values():
            for spares in pair:
                spares.clear()
        self.of_users.clear()

    def _spares(self, user: int) -> tuple[Spares, Spares]:
        if user not in self.of_users:
            if len(self.of_users) >= USERS_MAX:
                for spares in self.of_users.pop(next(iter(self.of_users))):
                    spares.clear()
            self.of_users[user] = (
                Spares(f"{self.home}/dir-{user}-", lambda path, _fd: is_empty_dir(path, user), enabled=self.enabled),
                Spares(f"{self.home}/log-{user}-", is_empty_log, enabled=self.enabled),
            )
        return self.of_users[user]


def hand_over(path: str, user: int, group: int) -> None:
    """A directory that is ours to its user; one that is not ours stays as it is."""
    me = os.geteuid()
    if user != me and os.lstat(path).st_uid == me:
        os.chown(path, user, group, follow_symlinks=False)


def moved(source: str, target: str, fd: int) -> bool:
    """Rename a spare, or discard it where that cannot be. Only the keeper uses the target, and it is free."""
    try:
        os.rename(source, target)
    except OSError:
        discard(source, fd)
        return False
    return True


def is_empty_dir(path: str, user: int) -> bool:
    try:
        found = os.lstat(path)
        return found.st_mode == stat.S_IFDIR | DIR_MODE and found.st_uid == user and not os.listdir(path)
    except OSError:
        return False


def is_empty_log(_path: str, fd: int) -> bool:
    """Also linked, and open nowhere else: only then the kernel gives a write lease."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        found = os.fstat(fd)
    except (OSError, ValueError):  # ValueError: the descriptor is -1
        return False
    return found.st_size == 0 and found.st_nlink == 1 and found.st_mode == stat.S_IFREG | LOG_MODE


def discard(path: str, fd: int) -> None:
    """Remove an empty directory or an empty regular file, nothing else: a log may have been a link, or /dev/null."""
    close(fd)
    with suppress(OSError):
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode):
            os.rmdir(path)
        elif stat.S_ISREG(found.st_mode) and found.st_size == 0:
            os.unlink(path)


def size_of(fd: int, path: str) -> int:
    """The size of a log, open or not; 0: the run removed it."""
    try:
        return os.stat(fd if fd >= 0 else path).st_size
    except OSError:
        return 0


def close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
