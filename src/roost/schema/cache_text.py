"""The sentences about caches."""

from collections.abc import Callable
from typing import Any

from roost.model.reasons import caching
from roost.model.records.cache import CacheProblem
from roost.model.spec.units import show_bytes

PROBLEMS = {
    CacheProblem.NOT_RESTORED: "not restored",
    CacheProblem.EXISTS: "not saved: another run saved it meanwhile",
    CacheProblem.BAD_KEY: "not saved: the key is too long, or was lost",
    CacheProblem.EMPTY: "not saved: no file matches its paths",
    CacheProblem.INCOMPLETE: "not saved: not all files could be kept",
    CacheProblem.TOO_LARGE: "not saved: too large",
    CacheProblem.PROJECT_FULL: "not saved: the quota of the project is used up",
    CacheProblem.NOT_STORED: "not saved: the blob store did not take it",
}


def _hit(why: caching.CacheHit, _: object) -> str:
    return f"cache hit {why.key} ({_size(why.size)})"


def _saved(why: caching.CacheSaved, _: object) -> str:
    return f"cache saved {why.key} ({_size(why.size)})"


def _size(size: int) -> str:
    return show_bytes(size) if size >= 1_024 else f"{size}B"


def _unused(why: caching.CacheUnused, _: object) -> str:
    detail = f": {why.detail}" if why.detail else ""
    return f"cache {PROBLEMS[why.problem]}{detail} ({why.key})"


CACHE_SENTENCES: dict[type, str | Callable[[Any, Any], str]] = {
    caching.CacheHit: _hit,
    caching.CacheMiss: "cache miss {key}",
    caching.CacheSaved: _saved,
    caching.CacheUnused: _unused,
}
