"""Several sets of files become one: each below a folder of its own, or all in the same."""

from collections.abc import Iterable
from typing import NamedTuple

from roost.files.manifest import Entry, FileEntry, FolderEntry, LinkEntry, Manifest, check
from roost.files.patterns import Pattern
from roost.model.errors import Invalid
from roost.ports.blobs import BLOB_BYTES_MAX

FOLDER_MODE = 0o755  # of folders that no set has


class InputPart(NamedTuple):
    to: str  # a path; "" is the top
    manifest: Manifest
    pattern: str = ""  # only these of its files; "" is all of them
    is_optional: bool = False  # also without a file that matches


def merge(parts: Iterable[InputPart], *, bytes_max: int = BLOB_BYTES_MAX, replace: bool = False) -> Manifest:
    """`replace`: of two files with one path, the later one stays; else they are refused.

    Raises Invalid with a path that two sets have, TooMuch for more than a manifest may have.
    """
    found: dict[str, Entry] = {}
    for part in parts:
        for entry in _selected(part):
            path = f"{part.to}/{entry.path}" if part.to else entry.path
            _add_folders(found, path)
            _add(found, _at(entry, path), replace)
    entries = sorted(found.values(), key=lambda entry: entry.path.split("/"))
    manifest = Manifest(tuple(entries))
    check(manifest, bytes_max)
    return manifest


def _selected(part: InputPart) -> Iterable[Entry]:
    if not part.pattern:
        return part.manifest.entries
    pattern = Pattern(part.pattern)
    chosen = [entry for entry in part.manifest.entries if pattern.matches(entry.path)]
    if not chosen and not part.is_optional:
        raise Invalid(part.to or ".", f"no file of this input matches {part.pattern}", code="no_match")
    return chosen


def _add_folders(found: dict[str, Entry], path: str) -> None:
    names = path.split("/")
    for depth in range(1, len(names)):
        place = "/".join(names[:depth])
        if not isinstance(found.setdefault(place, FolderEntry(place, FOLDER_MODE)), FolderEntry):
            raise Invalid(place, "is a folder in one input and a file in another", code="same_path")


def _add(found: dict[str, Entry], entry: Entry, replace: bool) -> None:
    other = found.setdefault(entry.path, entry)
    if other is entry or isinstance(other, FolderEntry) and isinstance(entry, FolderEntry):
        return
    if not replace or isinstance(other, FolderEntry) or isinstance(entry, FolderEntry):
        raise Invalid(entry.path, "is in two inputs", code="same_path")
    found[entry.path] = entry


def _at(entry: Entry, path: str) -> Entry:
    match entry:
        case FileEntry():
            return FileEntry(path, entry.mode, entry.size, entry.digest)
        case LinkEntry():
            return LinkEntry(path, entry.target)
        case FolderEntry():
            return FolderEntry(path, entry.mode)
