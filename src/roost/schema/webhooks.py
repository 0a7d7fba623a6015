"""Webhooks and their deliveries."""

import msgspec

from roost.model.records.webhook import DEFAULT_EVENTS
from roost.schema.page import Page


class HookView(msgspec.Struct, frozen=True, kw_only=True):
    """A hook as it is shown: never its secret. What is counted is counted since the server leads that was asked."""

    project: str
    name: str
    url: str
    command: bool  # of the server's own settings
    events: list[str]
    workload: str
    enabled: bool
    signed: bool
    changed_ms: int
    changed_by: str
    delivered: int = 0
    failed: int = 0
    given_up: int = 0
    dropped: int = 0
    waiting: int = 0
    last_ms: int | None = None
    last_code: int | None = None
    last_error: str = ""
    missing: str = ""


class HookPage(Page[HookView, str], frozen=True):
    """Hooks by project and name. There are more as long as `next` is given, which goes into `after`."""


class HookBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A webhook: where messages go, and of what. `secret`: unchanged if left out; null: none."""

    url: str
    events: tuple[str, ...] = DEFAULT_EVENTS
    workload: str = ""
    enabled: bool = True
    secret: str | None | msgspec.UnsetType = msgspec.UNSET

    def __repr__(self) -> str:
        return "<a hook>"


class HookTried(msgspec.Struct, frozen=True, kw_only=True):
    """How a ping went. `code`: the status that was answered, or the exit code of a command."""

    ok: bool
    code: int | None
    message: str
    took_ms: int
