"""Files below a directory, opened name by name: a link in the place of a folder is never followed."""

import os
from pathlib import Path
from typing import Self

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in its place does not block
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(root: Path | int) -> int:
    """A descriptor for a directory: by its path, or another one by a descriptor."""
    return os.open(".", FOLDER, dir_fd=root) if isinstance(root, int) else os.open(root, FOLDER)


class Below:
    """An open directory. The folder that was used last stays open: files come in the order of their folders."""

    def __init__(self, root: Path | int) -> None:
        self.root = open_folder(root)
        self._path = ""
        self._folder = self.root

    def close(self) -> None:
        self._forget()
        os.close(self.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def folder(self, path: str) -> int:
        """The descriptor of a folder, until the next call. "" is the directory itself."""
        if path != self._path:
            self._forget()
            found = self.root
            for name in path.split("/") if path else ():
                above, found = found, os.open(name, FOLDER, dir_fd=found)
                if above != self.root:
                    os.close(above)
            self._path, self._folder = path, found
        return self._folder

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        folder, _, name = path.rpartition("/")
        return os.open(name, flags, mode, dir_fd=self.folder(folder))

    def _forget(self) -> None:
        if self._folder != self.root:
            os.close(self._folder)
        self._path, self._folder = "", self.root
