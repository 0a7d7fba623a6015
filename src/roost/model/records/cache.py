"""Entries of caches: sets of files that runs have left for later runs of their project, by key."""

from enum import StrEnum

import msgspec

from roost.model.records.files import FileSet


class CacheEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True):
    """It never changes, apart from its last use: the entries used longest ago make room for new ones."""

    files: FileSet
    saved_by: str  # PROJECT/NAME.INDEX
    saved_ms: int
    used_ms: int


class CacheProblem(StrEnum):
    """Why the files of a cache were not restored, or not saved."""

    NOT_RESTORED = "not_restored"  # they could not be fetched, or do not fit beside the inputs
    EXISTS = "exists"  # another run saved the key meanwhile
    BAD_KEY = "bad_key"  # longer than a key may be, or lost with the work directory
    EMPTY = "empty"  # no file matches its paths
    INCOMPLETE = "incomplete"  # not all files could be kept
    TOO_LARGE = "too_large"
    PROJECT_FULL = "project_full"
    NOT_STORED = "not_stored"  # the blob store did not take it in time


class CacheFound(msgspec.Struct, frozen=True):
    """What a run gets: an entry, perhaps of another key than the one that it looked for."""

    key: str
    files: FileSet
