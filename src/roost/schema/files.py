"""Files of a project: which contents are missing, uploads in progress, sets of files."""

import msgspec


class Digests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of contents, at most 10,000: `sha256:` and 64 hexadecimal digits each."""

    digests: list[str]


class MissingFiles(msgspec.Struct, frozen=True):
    """Those of the contents that have to be sent."""

    missing: list[str]


class UploadView(msgspec.Struct, frozen=True):
    """An upload: where to go on, and whether the blob is stored."""

    offset: int
    stored: bool


class FileSetView(msgspec.Struct, frozen=True):
    """A set of files that is complete. `digest`: of its manifest; `size`: bytes of all files together."""

    digest: str
    files: int
    size: int
