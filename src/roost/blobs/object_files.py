"""Objects in files: one file per key below a root, which servers may share over NFS."""

import contextlib
import functools
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import ParamSpec, TypeVar
from urllib.parse import quote, unquote

from roost.blobs.disk import ADVICE, make_private, sync, write_all
from roost.ports.logs import parts_of
from roost.ports.objects import ObjectsUnavailable

# A "+" never appears in an escaped name: these are no keys.
ENDING = "+object"
NEW = "+new"  # the folder of files that are being written

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

P = ParamSpec("P")
T = TypeVar("T")


def _answering(call: Callable[P, T]) -> Callable[P, T | ObjectsUnavailable]:
    """What the disk refuses is an answer."""

    @functools.wraps(call)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T | ObjectsUnavailable:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            advice = ADVICE.get(error.errno or 0)
            return ObjectsUnavailable(f"{error}; {advice}" if advice else str(error))

    return answer


class FileObjects:
    """The Objects port on a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @_answering
    def put(self, key: str, data: bytes) -> None:
        path = self._path(key, ENDING)
        new = self._root / NEW / uuid.uuid4().hex
        descriptor = _in_folder(new, lambda: os.open(new, CREATE, 0o600))
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        except OSError:
            new.unlink()
            raise
        finally:
            os.close(descriptor)
        _in_folder(path, lambda: os.replace(new, path))
        sync(path.parent)

    @_answering
    def get(self, key: str) -> bytes | None:
        try:
            return self._path(key, ENDING).read_bytes()
        except FileNotFoundError:
            return None

    @_answering
    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[str]:
        return list(islice(self._keys(self._path(folder), f"{folder}/", after), limit))

    @_answering
    def delete(self, key: str) -> None:
        self._path(key, ENDING).unlink(missing_ok=True)
        path = self._path(key)
        gone = self._root / NEW / uuid.uuid4().hex
        make_private(gone.parent)
        with contextlib.suppress(FileNotFoundError):  # renamed first: no reader finds a half of them
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(OSError):  # folders go with their last file; one that is not empty ends the walk
            for parent in path.relative_to(self._root).parents[:-1]:
                (self._root / parent).rmdir()

    def _keys(self, path: Path, folder: str, after: str) -> Iterator[str]:
        """In order: what is below a folder sorts by its name with the slash."""
        found: list[tuple[str, str]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                if entry.name.endswith(ENDING):
                    found.append((folder + unquote(entry.name.removesuffix(ENDING)), ""))
                elif entry.is_dir(follow_symlinks=False):
                    found.append((f"{folder}{unquote(entry.name)}/", entry.name))
        for key, name in sorted(found):
            if name and (key > after or after.startswith(key)):
                yield from self._keys(path / name, key, after)
            elif not name and key > after:
                yield key

    def _path(self, key: str, ending: str = "") -> Path:
        names = [quote(part, safe="") for part in parts_of(key)]
        names[-1] += ending
        return self._root.joinpath(*names)


def _in_folder(path: Path, call: Callable[[], T]) -> T:
    """Make the folder of a file only where it is missing. Another thread removes it at any time when it is empty."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return call()
        make_private(path.parent)
