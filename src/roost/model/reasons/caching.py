"""Reasons about the cache of an attempt: lines of its story, which change no state."""

from roost.model.reasons.subjects import BaseReason
from roost.model.records.cache import CacheProblem


class CacheHit(BaseReason, frozen=True):
    """It gets files of the cache: those of its key, or of one with a prefix that it restores."""

    key: str
    size: int


class CacheMiss(BaseReason, frozen=True):
    """There were no files in the cache for it."""

    key: str


class CacheSaved(BaseReason, frozen=True):
    """Its files are in the cache for later runs."""

    key: str
    size: int


class CacheUnused(BaseReason, frozen=True):
    """Files of its cache were not restored, or not saved. It runs, and ends, as it would without a cache."""

    key: str
    problem: CacheProblem
    detail: str = ""


CacheReason = CacheHit | CacheMiss | CacheSaved | CacheUnused
