"""The servers: who leads, who stands by. Types, and the client's calls for them."""

import msgspec

from roost.client.transport import Transport


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `revision` is how far it has come; `now_ms` what its clock shows."""

    name: str
    role: str
    api: str
    agents: str
    revision: int
    now_ms: int
    version: str
    failed: str = ""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How fast leadership changes hands."""

    ttl_ms: int
    renew_ms: int
    retry_ms: int
    hold_ms: int


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """All servers, the leader first. Alone on a store of its own, a server has no timing."""

    epoch: int
    items: list[Server]
    timing: Timing | None = None


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads."""

    leads: bool
    name: str = ""
    api: str = ""


class ServerCalls:
    """What a client asks about servers."""

    _transport: Transport

    def servers(self) -> Servers:
        """All servers: who leads, who stands by."""
        return msgspec.json.decode(self._transport.call("GET", "/v1/servers").body, type=Servers)

    def backup(self) -> bytes:
        """Everything that is stored, as of one revision, packed."""
        return self._transport.call("GET", "/v1/backup").body

    def transfer_leader(self, to: str = "") -> Leader:
        """Let another server lead: the one of this name, or whoever is first. Who led until now."""
        body = msgspec.json.encode({"to": to})
        return msgspec.json.decode(self._transport.call("POST", "/v1/leader/transfer", None, body).body, type=Leader)
