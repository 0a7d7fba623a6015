"""Team: a server among others on one store, from its settings. Alone on a store of its own, it has no team."""

import os
import socket
from collections.abc import Callable

import grpc

from roost.ports.store import SharedStore, Store
from roost.server.agents.log_store import LogHub
from roost.server.cluster.election import ServerIdentity
from roost.server.cluster.leadership import Leadership
from roost.server.cluster.peers import OPTIONS, Peers
from roost.server.config import ServerConfig
from roost.server.controller.listen import controller_address
from roost.server.engine.engine import Engine
from roost.server.pki.authority import SERVER_NAME
from roost.server.pki.bootstrap import agents_addresses, api_urls
from roost.server.pki.tls import ServerTls


class ClusterMember:
    def __init__(self, store: SharedStore, config: ServerConfig, api_port: int, now_ms: Callable[[], int]) -> None:
        self.peers: Peers | None = None
        self._transport: ServerTls | None = None
        identity = ServerIdentity(
            config.name or socket.gethostname(),
            os.urandom(8).hex(),
            api_urls(config, api_port)[0],
            agents_addresses(config, config.agents_port)[0],
            controller_address(config),
        )
        self.leadership = Leadership(store, identity, config.timing(), now_ms, self._attend)

    def begin(self, engine: Engine, logs: LogHub) -> Peers:
        self.peers = Peers(engine, logs, self._channel)
        return self.peers

    def secured(self, transport: ServerTls) -> None:
        """Certificates are there: other servers can be called."""
        self._transport = transport

    async def close(self) -> None:
        if self.peers is not None:
            await self.peers.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        others = [identity.agents for identity in self.peers.attending.values()] if self.peers is not None else []
        return tuple(dict.fromkeys((self.leadership.identity.agents, *others)))

    @property
    def apis(self) -> tuple[str, ...]:
        return tuple(identity.api for identity in self.peers.attending.values()) if self.peers is not None else ()

    async def _attend(self, leader: ServerIdentity) -> bool:
        if self.peers is None or self._transport is None:
            return False
        return await self.peers.attend(leader)

    async def _channel(self, address: str) -> grpc.aio.Channel:
        assert self._transport is not None, "the others are spoken to before there are certificates"
        bundle = self._transport.server.bundle
        credentials = grpc.ssl_channel_credentials(
            bundle.authority.encode(), bundle.key.encode(), bundle.certificate.encode()
        )
        options = (*OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME))
        return grpc.aio.secure_channel(address, credentials, options=options)


def make_member(store: Store, config: ServerConfig, api_port: int, now_ms: Callable[[], int]) -> ClusterMember | None:
    if not config.is_shared:
        return None
    assert isinstance(store, SharedStore)
    return ClusterMember(store, config, api_port, now_ms)
