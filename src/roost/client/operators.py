"""What operators do: nodes out of service and back, pools, maintenance. Types, and the client's calls for them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from roost.client.setting_types import Maintenance, Pool
from roost.client.transport import Transport, segment
from roost.client.types import Node


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """Where an instance would go if its node was drained; without a node, why nowhere."""

    project: str
    name: str
    index: int
    node: str
    strategy: str
    code: str
    words: str
    may_finish: bool


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a drain would do. `whole`: everything that has to go at once has a place."""

    node: str
    revision: int
    whole: bool
    leaving: list[Leaving]


class OperatorCalls:
    """What a client asks for as an operator."""

    _transport: Transport

    def drain(self, name: str, deadline: str | int | float | None = None) -> Node:
        """Take a node out of service; with a deadline (`10m`, or seconds) jobs may finish until then."""
        return msgspec.json.decode(self._drain(name, deadline, dry_run=False), type=Node)

    def plan_drain(self, name: str, deadline: str | int | float | None = None) -> DrainPlan:
        """Where everything on a node would go if it was drained now. Nothing happens."""
        return msgspec.json.decode(self._drain(name, deadline, dry_run=True), type=DrainPlan)

    def cordon(self, name: str) -> Node:
        """Keep new work from a node; what runs there stays."""
        return self._send("POST", f"/v1/nodes/{segment(name)}/cordon", {}, Node)

    def resume(self, name: str) -> Node:
        """Put a node back into service."""
        return self._send("POST", f"/v1/nodes/{segment(name)}/resume", {}, Node)

    def pool(self, name: str) -> Pool:
        """A pool: its settings, its nodes, what is given away."""
        return msgspec.json.decode(self._transport.call("GET", f"/v1/pools/{segment(name)}").body, type=Pool)

    def set_pool(
        self,
        name: str,
        *,
        strategy: str = "",
        overcommit: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[str] = (),
        zone: str = "",
        rack: str = "",
        region: str = "",
        projects: Sequence[str] = (),
        when_failed: str = "move",
        fallback: str = "",
        fail_after: str | int | float | None = None,
    ) -> Pool:
        """Set what the nodes of a pool have in common; what is left out gets its default."""
        body = {
            "strategy": strategy, "overcommit": overcommit or {}, "labels": labels or {}, "taints": list(taints),
            "zone": zone, "rack": rack, "region": region, "projects": list(projects), "when_failed": when_failed,
            "fallback": fallback, "fail_after": fail_after,
        }  # fmt: skip
        return self._send("PUT", f"/v1/pools/{segment(name)}", body, Pool)

    def mark_pool(self, name: str, status: str, reason: str = "") -> Pool:
        """Say that a pool has failed, is `draining`, or is `ready` again."""
        return self._send("PUT", f"/v1/pools/{segment(name)}/status", {"status": status, "reason": reason}, Pool)

    def unset_pool(self, name: str) -> None:
        """Forget the settings of a pool; its nodes stay."""
        self._transport.call("DELETE", f"/v1/pools/{segment(name)}")

    def maintenance(self) -> Maintenance:
        """Whether there is maintenance, since when and why."""
        return msgspec.json.decode(self._transport.call("GET", "/v1/maintenance").body, type=Maintenance)

    def begin_maintenance(self, reason: str, lasting: str | int | float | None = None) -> Maintenance:
        """Hold everything where it is, for a while (`2h`, or seconds) or until it is ended."""
        return self._send("PUT", "/v1/maintenance", {"reason": reason, "for": lasting}, Maintenance)

    def end_maintenance(self) -> Maintenance:
        """Let everything take its course again."""
        return msgspec.json.decode(self._transport.call("DELETE", "/v1/maintenance").body, type=Maintenance)

    def _drain(self, name: str, deadline: str | int | float | None, *, dry_run: bool) -> bytes:
        body = msgspec.json.encode({} if deadline is None else {"deadline": deadline})
        query = {"dry_run": "true"} if dry_run else None
        return self._transport.call("POST", f"/v1/nodes/{segment(name)}/drain", query, body).body

    def _send(self, method: str, path: str, body: Any, kind: type[Any]) -> Any:
        return msgspec.json.decode(self._transport.call(method, path, None, msgspec.json.encode(body)).body, type=kind)
