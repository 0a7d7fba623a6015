"""Versions of a workload and the rollout to the newest."""

from typing import Annotated, Any

import msgspec

from roost.schema.reason_text import ReasonView

VERSION_MAX = 1 << 31  # a change every second for 68 years


class RolloutView(msgspec.Struct, frozen=True, kw_only=True):
    """A change to a new version: on its way, or how it went.

    States: rolling, waiting (the canaries are available: promote it or roll it back), done, failed. `done` instances of
    the new version are available, `failures` of them ended by themselves. `before` is the version to go back to.
    """

    state: str
    done: int = 0
    failures: int = 0
    before: int | None = None
    promoted: bool = False
    message: str = ""
    reason: ReasonView | None = None  # the message as data
    started_ms: int = 0
    progress_ms: int = 0


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as it is or was at a version. `instances` are there of it now. `diff`: against the version before."""

    version: int
    at_ms: int
    change: str
    change_reason: ReasonView | None = None
    present: bool
    instances: int
    rollout: RolloutView | None
    document: dict[str, Any]
    diff: list[str] = []


class VersionPage(msgspec.Struct, frozen=True):
    """Versions, the newest first. `diff`: what differs between two that were asked for, as lines."""

    revision: int
    items: list[VersionView]
    diff: list[str] = []


class Back(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version to go back to; none named: the last one that was good, and another one than now."""

    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)] | None = None
