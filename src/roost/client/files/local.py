"""Files of this machine that are to be sent: one manifest, and where the bytes of each digest are."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from roost.client.errors import CannotSend
from roost.files.manifest import FileEntry, Manifest
from roost.files.merge import InputPart, merge
from roost.files.scan import Read, scan, scan_file
from roost.model.errors import Invalid, TooMuch

OnePath = str | os.PathLike[str]
# A path; several, each with its own name; or the path that each gets among the files that are sent.
Paths = OnePath | Sequence[OnePath] | Mapping[str, OnePath]


class Local(NamedTuple):
    """A file of this machine: its path is below `root`."""

    root: Path
    file: FileEntry


class LocalFiles(NamedTuple):
    """What is sent; `places` has one file for each digest."""

    manifest: Manifest
    places: dict[str, Local]


def find_local(paths: Paths, *, read: Read = lambda length: None, ignore: bool = True) -> LocalFiles:
    """Read and hash everything. `ignore`: what .gitignore or .roostignore name stays behind. Raises CannotSend."""
    parts: list[InputPart] = []
    places: dict[str, Local] = {}
    for to, path in _named(paths).items():
        root, found = _scan(path, read, ignore)
        for file in found.files():
            places.setdefault(file.digest, Local(root, file))
        folder = "/".join(name for name in to.split("/") if name not in ("", "."))
        is_folder = path.is_dir()
        if not is_folder:
            folder, _, name = folder.rpartition("/")
            found = Manifest(tuple(replace(entry, path=name) for entry in found.entries))
        parts.append(InputPart(folder, found))
    if len(parts) == 1 and is_folder and not folder:  # it is sorted and checked
        return LocalFiles(found, places)
    try:
        return LocalFiles(merge(parts), places)
    except (Invalid, TooMuch) as error:
        raise CannotSend(error.path, error.message) from None


def _named(paths: Paths) -> dict[str, Path]:
    """Paths of this machine, by their path among the files that are sent. "" is the whole."""
    if isinstance(paths, Mapping):
        return {to: Path(path) for to, path in paths.items()}
    if isinstance(paths, str | os.PathLike):
        path = Path(paths)
        return {"" if path.is_dir() else path.name: path}
    named: dict[str, Path] = {}
    for path in map(Path, paths):
        name = path.name or path.resolve().name  # of "." and ".."
        if name == "..":
            name = path.resolve().name
        if name in named:
            raise CannotSend(str(path), f"two paths that are sent are called {name}")
        named[name] = path
    return named


def _scan(path: Path, read: Read, ignore: bool) -> tuple[Path, Manifest]:
    """What is at a path: a directory, or the folder of a file with only this file."""
    try:
        found = path.resolve()  # a link that the user names is followed; those inside are entries
        if found.is_dir():
            return found, scan(found, read=read, ignore=ignore)
        return found.parent, Manifest((replace(scan_file(path, read=read), path=found.name),))
    except OSError as error:
        inside = error.filename if isinstance(error.filename, str) and path.is_dir() else ""
        raise CannotSend(os.path.join(path, inside) if inside else str(path), error.strerror or str(error)) from None
    except (Invalid, TooMuch) as error:
        raise CannotSend(os.path.join(path, error.path) if path.is_dir() else str(path), error.message) from None
