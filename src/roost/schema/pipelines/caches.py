"""Caches over REST: the files that runs of a project have left for later ones."""

import msgspec

from roost.schema.page import Page


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    """An entry: the same key always stands for the same files. Those used longest ago make room."""

    project: str
    key: str
    digest: str  # of the manifest
    files: int
    size: int
    saved_by: str  # PROJECT/NAME.INDEX
    saved_ms: int
    used_ms: int


class CachePage(Page[CacheView, str], frozen=True):
    """Entries by key."""


class CacheDeletion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys to delete, all or none of them; or with `all` every key of the project."""

    keys: list[str] = []
    all: bool = False


class CacheDeleted(msgspec.Struct, frozen=True):
    deleted: int
