"""A cache of inputs on a node, by digest. Tasks get copies; only a task of another user may share a read-only file.

Files are not synced: after a restart of the machine, each is verified again before its first use.
"""

import hashlib
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from roost.files.below import FILE, NEW_FILE
from roost.files.manifest import FileEntry
from roost.files.unpack import NewFile, copy, write_verified
from roost.model.errors import TooMuch
from roost.ports.blobs import SHA256, check_digest

READ_ONLY = 0o444
UNVERIFIED = 0o400  # the mode of a file that was written before the machine started
HASH_BYTES = 1 << 20
BOOT = Path("/proc/sys/kernel/random/boot_id")


class InputCache:
    """A folder that no other process writes to, with at most `bytes_max` bytes. Safe to use from several threads.

    The files used least recently go first. A file that is held stays, also above the bound. OSError is for what the
    disk refuses.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # the one used last is at the end
        self._bytes = 0
        self._held: Counter[str] = Counter()
        self._unverified: set[str] = set()
        self._writes = 0
        self._load()

    @property
    def bytes_used(self) -> int:
        return self._bytes

    def size(self, digest: str) -> int | None:
        """The size of a file that is there; None: it is not."""
        return self._sizes.get(digest)

    def read(self, digest: str) -> bytes:
        """All bytes of a small file. The caller holds the digest, so it is there."""
        return Path(self._path(digest)).read_bytes()

    def draft(self) -> Path:
        """A path for bytes whose digest is not known yet. The caller removes the file, or the next start does."""
        with self._lock:
            self._writes += 1
            return self._folder / f"draft-{self._writes}"

    @contextmanager
    def hold(self, digests: Iterable[str]) -> Iterator[list[str]]:
        """Keep these from eviction; gives those that are not there, which the caller adds."""
        held = list(dict.fromkeys(digests))
        check_digest(*held)
        with self._lock:
            self._held.update(held)
        try:
            yield [digest for digest in held if not self._has(digest)]
        finally:
            with self._lock:
                self._held.subtract(held)
                self._held = +self._held
                self._make_room(0)

    def add(self, digest: str, size: int, chunks: Iterable[bytes]) -> None:
        """Keep verified bytes. Raises Invalid if others come, TooMuch if they cannot fit beside what is held."""
        check_digest(digest)
        with self._lock:
            if digest in self._sizes:
                return
            if self._bytes + size > self._bytes_max:
                self._check_room(digest, size)
                self._make_room(size)
            self._bytes += size  # reserved: several may be on their way
            self._writes += 1
            temporary = self._folder / f"new-{self._writes}"
        kept = False
        try:
            _write(temporary, digest, size, chunks)
            with self._lock:
                if digest not in self._sizes:
                    temporary.rename(self._path(digest))
                    self._sizes[digest] = size
                    kept = True
        finally:
            if not kept:
                temporary.unlink(missing_ok=True)
                with self._lock:
                    self._bytes -= size

    def clear(self) -> bool:
        """Remove all that is not held; False: there was nothing."""
        with self._lock:
            unused = [digest for digest in self._sizes if digest not in self._held]
            for digest in unused:
                self._drop(digest)
            return bool(unused)

    def place(self, digest: str, target: NewFile, *, user: int) -> None:
        """Make the file for a task of `user`. The caller holds the digest, so it is there."""
        with self._lock:
            self._sizes.move_to_end(digest)
        path = self._path(digest)
        os.utime(path)
        # Root writes to any file, and the owner of a file can make it writable.
        if target.mode == READ_ONLY and user not in (0, os.geteuid()):
            try:
                return os.link(path, target.name, dst_dir_fd=target.folder, follow_symlinks=False)
            except OSError:  # another file system, or too many links
                pass
        source = os.open(path, FILE)
        try:
            copy(source, target, user if os.geteuid() == 0 and user != 0 else None)
        finally:
            os.close(source)

    def _has(self, digest: str) -> bool:
        with self._lock:
            verified = digest in self._sizes and digest not in self._unverified
            if verified or digest not in self._sizes:
                return verified
        right = _hash(self._path(digest)) == digest
        with self._lock:
            self._unverified.discard(digest)
            if right:
                os.chmod(self._path(digest), READ_ONLY)
            else:
                self._drop(digest)
        return right

    def _check_room(self, digest: str, size: int) -> None:
        held = sum(self._sizes[other] for other in self._held if other in self._sizes)
        if held + size > self._bytes_max:
            message = f"{size} bytes do not fit: the cache has {self._bytes_max}, {held} are in use"
            raise TooMuch(message, path=digest)

    def _make_room(self, size: int) -> None:
        for digest in list(self._sizes):
            if self._bytes + size <= self._bytes_max:
                break
            if digest not in self._held:
                self._drop(digest)

    def _drop(self, digest: str) -> None:
        if digest in self._sizes:
            Path(self._path(digest)).unlink(missing_ok=True)
            self._bytes -= self._sizes.pop(digest)

    def _path(self, digest: str) -> str:
        return f"{self._folder}/{digest.removeprefix(SHA256)}"

    def _load(self) -> None:
        """What an earlier process left: whole files, in the order of their last use. Others are removed."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        boot, mark = BOOT.read_text() if BOOT.exists() else "", self._folder / "boot"
        same = bool(boot) and mark.exists() and mark.read_text() == boot
        found: list[tuple[int, str, int]] = []
        for path in self._folder.iterdir():
            if len(path.name) == 64:
                if not same:
                    path.chmod(UNVERIFIED)
                stat = path.stat()
                found.append((stat.st_mtime_ns, SHA256 + path.name, stat.st_size))
                if stat.st_mode & 0o777 != READ_ONLY:
                    self._unverified.add(SHA256 + path.name)
            elif path != mark:
                path.unlink()
        mark.write_text(boot)  # after a crash before this line, all files are still verified
        for _, digest, size in sorted(found):
            self._sizes[digest] = size
            self._bytes += size
        self._make_room(0)


def _write(path: Path, digest: str, size: int, chunks: Iterable[bytes]) -> None:
    descriptor = os.open(path, NEW_FILE, 0o600)
    try:
        write_verified(descriptor, FileEntry(digest, READ_ONLY, size, digest), chunks)
        os.fchmod(descriptor, READ_ONLY)
    finally:
        os.close(descriptor)


def _hash(path: str) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(HASH_BYTES):
            hasher.update(piece)
    return SHA256 + hasher.hexdigest()
