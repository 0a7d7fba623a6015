"""Services: where they are. Types, and the client's calls for them. Names as in the server's views."""

import msgspec

from roost.client.transport import Query, Transport, segment

PAGE = 100  # as much as a server gives at once


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where an instance listens: its node's address, and its ports by name."""

    index: int
    node: str
    host: str
    ports: dict[str, int] = {}
    ready: bool = False
    version: int = 1

    def at(self, port: str) -> str:
        """HOST:PORT, with brackets around an address that has colons itself."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.ports[port]}"


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service: how many are ready, how many keep ending (`looping`), and where the first hundred that run are.

    `rollout`: how the change to its version goes: rolling, waiting (for promotion), done or failed.
    """

    project: str
    name: str
    count: int
    ready: int
    looping: int = 0
    version: int = 1
    rollout: str | None = None
    ports: list[str] = []
    addresses: list[Address] = []


class ServicePage(msgspec.Struct, frozen=True):
    """Services as of a revision."""

    revision: int
    items: list[Service]
    next: str | None = None


class ServiceCalls:
    """What a client asks about services."""

    _transport: Transport

    def services(self, *, project: str = "", ready: bool = False) -> list[Service]:
        """The services that live; `ready`: only addresses that are to be used."""
        items: list[Service] = []
        after: str | None = None
        while True:
            query: Query = {"project": project, "ready": ready or None, "limit": PAGE, "after": after}
            page = msgspec.json.decode(self._transport.call("GET", "/v1/services", query).body, type=ServicePage)
            items += page.items
            after = page.next
            if after is None:
                return items

    def service(self, project: str, name: str, *, ready: bool = False) -> Service:
        """One service and where it is."""
        path = f"/v1/services/{segment(project)}/{segment(name)}"
        answer = self._transport.call("GET", path, {"ready": ready or None})
        return msgspec.json.decode(answer.body, type=Service)
