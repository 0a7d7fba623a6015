"""Paths of errors: from a field of what was read to the field of the request that it came in."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from roost.model.errors import RoostError, Unreadable


@contextmanager
def renamed_paths(rename: Callable[[str], str]) -> Iterator[None]:
    """Change the paths of an error and of all errors that it stands for. `$` is the whole of what was read."""
    try:
        yield
    except RoostError as error:
        error.path = rename("$" if isinstance(error, Unreadable) and not error.path else error.path)
        for listed in error.params.get("errors", ()):
            listed["path"] = rename(listed["path"])
        raise
