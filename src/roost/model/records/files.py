"""Files of a workload as they are stored: sets of files, by the digest of their manifest. Their bytes are blobs.

A set belongs to a project. Its manifest (roost/files/manifest.py) is itself a blob of that project.
"""

from enum import StrEnum

import msgspec

from roost.model.states import Milestone


class FileSet(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """A manifest and what it stands for."""

    digest: str  # sha256: of the manifest
    files: int = 0
    size: int = 0  # bytes of all files together


class Input(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """One input as the core knows it. Exactly one of `files`, `workload` and `url` is there.

    A name (`blob:NAME`) is resolved to its files when the workload is submitted.
    """

    to: str  # a path below the work directory; "" is the directory itself
    files: FileSet | None = None
    workload: str = ""  # PROJECT/NAME, whose outputs it gets; also a dependency of the policy
    path: str = ""  # of those outputs: a pattern; "" is all of them
    url: str = ""
    sha256: str = ""  # of the file at `url`: 64 hexadecimal digits


class OutputProblem(StrEnum):
    """Why outputs of an attempt are not there."""

    MISSING = "missing"  # no file matches a pattern
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    NOT_A_FILE = "not_a_file"  # a device, a pipe, a link that leaves the directory
    UNREADABLE = "unreadable"
    CHANGED = "changed"  # while it was read, by a process that outlived its run
    NOT_STORED = "not_stored"  # the blob store did not take it in time
    PROJECT_FULL = "project_full"


class OutputGap(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """Something that an attempt was to produce, and that is not among its outputs."""

    problem: OutputProblem
    path: str = ""  # the pattern, or the path of a file
    required: bool = False


class Outputs(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """What an attempt produced. Whole or absent: a set that is named here is in the blob store."""

    files: FileSet | None = None
    gaps: tuple[OutputGap, ...] = ()


class RunInput(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """An input as a node gets it: a manifest, or a URL."""

    to: str
    digest: str = ""  # of a manifest
    path: str = ""  # a pattern: only these of its files
    url: str = ""
    sha256: str = ""


INPUT_WAITS_FOR = Milestone.SUCCEEDED  # what an input from a workload waits for, unless `after` says another
