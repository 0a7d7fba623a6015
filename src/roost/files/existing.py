"""Files into a directory that exists: what is the same stays, what differs is refused or replaced as a whole."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from roost.files.below import FILE, Below
from roost.files.manifest import Entry, FileEntry, FolderEntry, LinkEntry, Manifest
from roost.model.errors import Conflict, Invalid
from roost.ports.blobs import SHA256

READ_BYTES = 1 << 20


def conflict_free(manifest: Manifest, to: Path | int, *, force: bool) -> Manifest:
    """The entries that are not in the directory yet. Raises Conflict for one that would replace another file.

    `force`: files and links may be replaced, folders never: that raises Invalid. Both have the path below `to`.
    """
    needed: list[Entry] = []
    absent: tuple[str, ...] = ()  # the folder that is not there, with all that is in it
    with Below(to) as below:
        for entry in manifest.entries:
            names = tuple(entry.path.split("/"))
            if absent and names[: len(absent)] == absent:
                needed.append(entry)
                continue
            found = _found(below, entry.path)
            if found is None:
                absent = names if isinstance(entry, FolderEntry) else ()
                needed.append(entry)
            elif isinstance(entry, FolderEntry):
                if not stat.S_ISDIR(found.st_mode):
                    raise Invalid(entry.path, "a folder belongs here, and there is something else")
            elif stat.S_ISDIR(found.st_mode):
                raise Invalid(entry.path, "a file belongs here, and there is a folder")
            elif not _is_same(below, entry, found):
                if not force:
                    raise Conflict("is there already, with another content", path=entry.path)
                needed.append(entry)
    return with_folders(manifest, needed)


def move_into(source: Path, to: Path | int, manifest: Manifest) -> None:
    """Move everything from one directory into another, on the same file system. Each file appears whole.

    A folder that is not there appears with all that is in it. The folders of `source` are writable.
    """
    made: list[FolderEntry] = []
    whole = "/"  # begins no path
    with Below(source) as old, Below(to) as new:
        for entry in manifest.entries:
            folder, _, name = entry.path.rpartition("/")
            if entry.path.startswith(whole):
                made += [entry] if isinstance(entry, FolderEntry) else []
            elif not isinstance(entry, FolderEntry) or _found(new, entry.path) is None:
                os.rename(name, name, src_dir_fd=old.folder(folder), dst_dir_fd=new.folder(folder))
                if isinstance(entry, FolderEntry):
                    made.append(entry)
                    whole = f"{entry.path}/"
        for entry in reversed(made):
            os.fchmod(new.folder(entry.path), entry.mode)


def _found(below: Below, path: str) -> os.stat_result | None:
    folder, _, name = path.rpartition("/")
    try:
        return os.stat(name, dir_fd=below.folder(folder), follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise Invalid(folder, "a folder belongs here, and there is something else") from None


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
