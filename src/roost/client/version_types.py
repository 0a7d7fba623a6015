"""Versions of a workload: the same names as in the server's views. Times are milliseconds since 1970."""

from typing import Any

import msgspec


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """A change to a new version: `rolling`, `waiting` (promote it or roll it back), `done` or `failed`."""

    state: str
    done: int = 0
    failures: int = 0
    before: int | None = None
    promoted: bool = False
    cause: str = ""
    started_ms: int = 0
    progress_ms: int = 0


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as it is or was at a version. `instances` are there of it now. `diff`: against the version before."""

    version: int
    at_ms: int
    change: str
    present: bool
    instances: int
    rollout: Rollout | None = None
    document: dict[str, Any] = {}
    diff: list[str] = []


class VersionPage(msgspec.Struct, frozen=True):
    """Versions, the newest first; `diff`: between two that were asked for."""

    revision: int
    items: list[Version]
    diff: list[str] = []
