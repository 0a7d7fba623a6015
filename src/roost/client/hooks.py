"""Hooks: whom the server tells of changes of state. Types, and the client's calls for them. Names as in types.py."""

from collections.abc import Sequence
from typing import Any

import msgspec

from roost.client.transport import Query, Transport, segment

PAGE = 1_000  # as much as a server gives at once


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook; project `*`: of all projects. What is counted is counted since the server leads that was asked."""

    project: str
    name: str
    url: str
    command: bool
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


class HookPage(msgspec.Struct, frozen=True):
    """Hooks as of a revision."""

    revision: int
    items: list[Hook]
    next: str | None = None


class HookTried(msgspec.Struct, frozen=True, kw_only=True):
    """How a ping went."""

    ok: bool
    code: int | None
    words: str
    took_ms: int


class HookCalls:
    """What a client asks about hooks."""

    _transport: Transport

    def hooks(self) -> list[Hook]:
        """The hooks of all projects in which you are an operator; never their secrets."""
        items: list[Hook] = []
        after: str | None = None
        while True:
            query: Query = {"limit": PAGE, "after": after}
            page = msgspec.json.decode(self._transport.call("GET", "/v1/hooks", query).body, type=HookPage)
            items += page.items
            after = page.next
            if after is None:
                return items

    def hook(self, project: str, name: str) -> Hook:
        """One hook: what it is told, and how that goes."""
        return msgspec.json.decode(self._transport.call("GET", _path(project, name)).body, type=Hook)

    def set_hook(
        self, project: str, name: str, url: str, *, events: Sequence[str] = (), workload: str = "",
        enabled: bool = True, secret: str | None = "",
    ) -> Hook:  # fmt: skip
        """Set a hook (project `*`: of all projects). `secret`: empty leaves it as it was, None signs no more."""
        body: dict[str, Any] = {"url": url, "workload": workload, "enabled": enabled}
        if events:
            body["events"] = list(events)
        if secret is None or secret:
            body["secret"] = secret
        answer = self._transport.call("PUT", _path(project, name), None, msgspec.json.encode(body))
        return msgspec.json.decode(answer.body, type=Hook)

    def remove_hook(self, project: str, name: str) -> None:
        """Forget a hook, and what waits for it."""
        self._transport.call("DELETE", _path(project, name))

    def test_hook(self, project: str, name: str) -> HookTried:
        """Send a ping, and say what was answered."""
        answer = self._transport.call("POST", f"{_path(project, name)}/test", None, b"{}")
        return msgspec.json.decode(answer.body, type=HookTried)


def _path(project: str, name: str) -> str:
    return f"/v1/projects/{segment(project)}/hooks/{segment(name)}"
