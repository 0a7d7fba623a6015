"""Keys of S3 in a file, for a server whose environment others can see. Nothing of the file is ever repeated."""

import os
import stat
from typing import NamedTuple

from roost.model.errors import Invalid

ACCESS, SECRET, SESSION = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
FILE_BYTES_MAX = 16 << 10  # session tokens have up to 4 KB
LINES = f"{ACCESS}=..., {SECRET}=..., and {SESSION}=... if there is one"


class S3Keys(NamedTuple):
    """Without any, the environment (AWS_*) or the role of the machine has them."""

    access: str = ""
    secret: str = ""
    session: str = ""


def read_keys(path: str) -> S3Keys:
    """Lines NAME=VALUE, with the names that the environment would have. Raises Invalid, also if others can read it."""
    if not path:
        return S3Keys()
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise Invalid("blobs", f"keys={path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
        raise Invalid("blobs", f"keys={path}: others can read or change it; use a file with mode 0600")
    keys = parse_keys(data)
    if keys is None:
        raise Invalid("blobs", f"keys={path}: a file has the lines {LINES}")
    return keys


def parse_keys(data: bytes) -> S3Keys | None:
    """The keys in such lines; None: there are others, or some are missing."""
    try:
        lines = [line.strip() for line in data.decode("ascii").splitlines()]
    except UnicodeDecodeError:
        lines = []
    found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    if len(data) > FILE_BYTES_MAX or set(found) - {SESSION} != {ACCESS, SECRET} or not all(found.values()):
        return None
    return S3Keys(found[ACCESS], found[SECRET], found.get(SESSION, ""))
