"""Files of a project: which contents are missing, uploads in progress, sets of files."""

import msgspec

from roost.schema.page import Page
from roost.schema.work import GapView


class Digests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of contents, at most 10,000: `sha256:` and 64 hexadecimal digits each."""

    digests: list[str]


class MissingFiles(msgspec.Struct, frozen=True):
    """Those of the contents that have to be sent."""

    missing: list[str]


class UploadView(msgspec.Struct, frozen=True, omit_defaults=True):
    """An upload: where to go on, and whether the blob is stored.

    `url`: all bytes can be sent there with PUT. Then an empty piece at the end tells so, and asks for the outcome.
    """

    offset: int
    stored: bool
    url: str = ""


class FileLinks(msgspec.Struct, frozen=True):
    """A URL for each content, in their order, for GET within 15 minutes. None at all: read them from the servers."""

    links: list[str]


class FileSetView(msgspec.Struct, frozen=True):
    """A set of files that is complete. `digest`: of its manifest; `size`: bytes of all files together."""

    digest: str
    files: int
    size: int


class CopyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is copied: a set of files that was sent, into the run (with `digest`), or what is at a path, out of it."""

    path: str = ""  # below the work directory; with a slash at the end: a folder
    digest: str = ""  # of the manifest of a set of files
    name: str = ""  # of what comes, where the path is a folder; empty: the content of the set goes there
    is_file: bool = False  # the set is one file, without a folder


class CopyView(msgspec.Struct, frozen=True, kw_only=True):
    """A copy into or out of a run. While `state` is `copying`, ask again."""

    state: str  # copying | done
    node: str
    path: str = ""  # where it was put or read, below the work directory, without links
    is_file: bool = False
    digest: str = ""  # out of the run: of the manifest of what was read; empty: an empty folder
    files: int = 0
    size: int = 0
    gaps: list[GapView] = []  # out of the run: what was not read
    more_gaps: int = 0  # beside these
    grown: list[str] = []  # files that grew meanwhile: they have the size that they had first


class NamedFilesBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The set of files that a name stands for, by the digest of its manifest."""

    digest: str


class NamedFilesView(msgspec.Struct, frozen=True, kw_only=True):
    """A name for a set of files. `blob:NAME` in `inputs` of a workload is this set."""

    project: str
    name: str
    digest: str
    files: int
    size: int
    changed_ms: int
    changed_by: str


class NamedFilesPage(Page[NamedFilesView, str], frozen=True):
    """Named files by name. There are more as long as `next` is given, which goes into `after`."""
