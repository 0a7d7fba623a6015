"""Services and the addresses of their replicas."""

import msgspec

from roost.model.keys import host_and_port
from roost.schema.page import Page


class AddressView(msgspec.Struct, frozen=True, kw_only=True):
    """Where an instance listens: its node's address, and its ports by name. `ready`: as its health check says."""

    index: int
    node: str
    host: str
    ports: dict[str, int] = {}
    ready: bool = False
    version: int = 1

    def at(self, port: str) -> str:
        return host_and_port(self.host, self.ports[port])


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """A service: how many of its replicas are ready or keep ending, and where the first hundred that run are.

    `rollout`: how the change to its version goes: rolling, waiting, done or failed; nothing: there was none.
    """

    project: str
    name: str
    count: int
    ready: int
    looping: int = 0
    version: int = 1
    rollout: str | None = None
    ports: list[str] = []
    addresses: list[AddressView] = []


class ServicePage(Page[ServiceView, str], frozen=True):
    """Services, newest first. There are more as long as `next` is given (for `after`); a page may be short."""
