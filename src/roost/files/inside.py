"""A path below a directory, followed through links that stay inside: the same place, without a link in it."""

import errno
import os

from roost.files.below import Below
from roost.files.manifest import LINKS_FOLLOWED_MAX
from roost.model.errors import Invalid


def resolve(below: Below, path: str) -> str:
    """Where a relative path leads; "" is the directory itself. What is not there yet leads where it would be made.

    Raises Invalid with the path for a link that leaves the directory, and for a folder that is something else. What
    opens the place afterwards follows no link, so a process that changes one meanwhile leads nowhere.
    """
    at: list[str] = []
    rest, followed = path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if not at:
                raise _leaves(path)
            at.pop()
            continue
        target = _target(below, "/".join(at), name, path)
        if target is None:
            at.append(name)
            continue
        followed += 1
        if followed > LINKS_FOLLOWED_MAX:
            raise Invalid(path, f"leads through more than {LINKS_FOLLOWED_MAX} links")
        if target.startswith("/"):
            raise _leaves(path)
        rest += target.split("/")[::-1]
    return "/".join(at)


def _target(below: Below, folder: str, name: str, path: str) -> str | None:
    """Where a link leads; None: it is no link, or not there."""
    try:
        return os.readlink(name, dir_fd=below.folder(folder))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):
            return None
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise Invalid(path, f"{folder or name} is not a folder") from None
        raise


def _leaves(path: str) -> Invalid:
    return Invalid(path, "a link leads out of the work directory")
