"""Files into a directory that exists: what is the same stays, what differs is refused or replaced as a whole."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from roost.client.errors import CannotWrite
from roost.files.below import FILE, Below
from roost.files.manifest import Entry, FileEntry, FolderEntry, LinkEntry, Manifest
from roost.ports.blobs import SHA256

READ_BYTES = 1 << 20
HINT = "choose another directory, or replace files with --force"


def conflict_free(manifest: Manifest, to: Path, *, force: bool) -> Manifest:
    """The entries that are not in the directory yet. Raises CannotWrite for one that would replace another file.

    `force`: files and links may be replaced, folders never.
    """
    if not to.is_dir():
        raise CannotWrite(str(to), "is a file, not a directory")
    needed: list[Entry] = []
    absent: tuple[str, ...] = ()  # the folder that is not there, with all that is in it
    with Below(to.resolve()) as below:
        for entry in manifest.entries:
            names = tuple(entry.path.split("/"))
            if absent and names[: len(absent)] == absent:
                needed.append(entry)
                continue
            found = _found(below, entry.path, to)
            if found is None:
                absent = names if isinstance(entry, FolderEntry) else ()
                needed.append(entry)
            elif isinstance(entry, FolderEntry):
                if not stat.S_ISDIR(found.st_mode):
                    raise CannotWrite(str(to / entry.path), "a folder belongs here, and there is something else", HINT)
            elif stat.S_ISDIR(found.st_mode):
                raise CannotWrite(str(to / entry.path), "a file belongs here, and there is a folder")
            elif not _is_same(below, entry, found):
                if not force:
                    raise CannotWrite(str(to / entry.path), "is there already, with another content", HINT)
                needed.append(entry)
    return with_folders(manifest, needed)


def move_into(source: Path, to: Path, manifest: Manifest) -> None:
    """Move everything from one directory into another, on the same file system. Each file appears whole."""
    made: list[FolderEntry] = []
    with Below(source) as old, Below(to.resolve()) as new:
        for entry in manifest.entries:
            folder, _, name = entry.path.rpartition("/")
            target = new.folder(folder)
            if isinstance(entry, FolderEntry):
                try:
                    os.mkdir(name, 0o700, dir_fd=target)
                    made.append(entry)
                except FileExistsError:
                    pass
            else:
                os.rename(name, name, src_dir_fd=old.folder(folder), dst_dir_fd=target)
        for entry in reversed(made):
            os.fchmod(new.folder(entry.path), entry.mode)


def _found(below: Below, path: str, to: Path) -> os.stat_result | None:
    folder, _, name = path.rpartition("/")
    try:
        return os.stat(name, dir_fd=below.folder(folder), follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise CannotWrite(str(to / folder), "a folder belongs here, and there is something else") from None


def _is_same(below: Below, entry: Entry, found: os.stat_result) -> bool:
    if isinstance(entry, LinkEntry):
        folder, _, name = entry.path.rpartition("/")
        return stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=below.folder(folder)) == entry.target
    if not isinstance(entry, FileEntry) or not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
        return False
    try:
        descriptor = below.open(entry.path, FILE)
    except PermissionError:
        return False
    hasher = hashlib.sha256()
    with open(descriptor, "rb", buffering=0) as file:
        while piece := file.read(READ_BYTES):
            hasher.update(piece)
    return SHA256 + hasher.hexdigest() == entry.digest


def with_folders(manifest: Manifest, needed: Iterable[Entry]) -> Manifest:
    """These entries and the folders that they are in, in the order of the manifest."""
    wanted = {entry.path for entry in needed}
    for path in list(wanted):
        folder = path.rpartition("/")[0]
        while folder and folder not in wanted:
            wanted.add(folder)
            folder = folder.rpartition("/")[0]
    return Manifest(tuple(entry for entry in manifest.entries if entry.path in wanted))
