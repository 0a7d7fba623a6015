"""Private files: written whole or not at all, and readable only by their owner."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from roost.stores.sqlite.mark import sync_directory


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into that replaces the one at `path` afterwards; after an error nothing has changed."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # with mode 0600
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def keep_private(*paths: Path) -> None:
    """Take files away from other users, also those that an earlier umask or copy has left open. Raises OSError."""
    for path in paths:
        with suppress(FileNotFoundError):
            path.chmod(0o600)


def readable_by_others(path: Path) -> str:
    """A warning with the remedy if other users can read a file that holds a key; "": they cannot. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"other users can read it (mode {mode:04o}): chmod 600 {path}" if mode & 0o044 else ""
