"""Certificates of nodes: issued, renewed, and which of them are good.

Each node has one record, and a certificate that is not in it opens nothing. A record names the current certificate and
the one before it, which a node may still use until it has stored the new one. The record is deleted in the commit that
removes the node.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import grpc
import msgspec

from roost.model.errors import Conflict, NoService, Refused
from roost.model.events import PutRecords
from roost.model.records.enrolment import Credential
from roost.model.records.opaque import OPAQUE_KINDS, By, OpaqueRecord
from roost.model.spec.names import check_node_name
from roost.model.states import ABSENT
from roost.server.config import CERTIFICATE_MS
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.authority import Authority, fingerprint, now_ms
from roost.server.pki.revocation import series_of

KIND = "certificate"
LIFE_BYTES = 8  # of the mark that tells one node of a name from the next
RECORDS_MANY = OPAQUE_KINDS[KIND] // 2  # from here on, expired ones are deleted
TRIES_MAX = 8  # of a change that conflicts with another one

log = logging.logger("certificates")


class Peer(NamedTuple):
    """The other end of a connection, by its certificate of our CA."""

    kind: str  # node | server
    name: str
    fingerprint: str
    pool: str = ""  # of a node, if its join token named one


class NodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that has joined, as it is stored."""

    life: str  # the same over renewals, another after joining again
    current: str  # fingerprint
    expires_ms: int
    previous: str = ""
    pool: str = ""
    joined_ms: int = 0


class NodeCredential:
    """A node as it was when it connected. Valid until it is removed or joins again: renewals end no stream."""

    __slots__ = ("_seen", "life", "node", "pool")

    def __init__(self, node: str, seen: bytes) -> None:
        record = _read(seen)
        self.node, self.life, self.pool = node, record.life, record.pool
        self._seen = seen

    def holds(self, certificates: "Certificates") -> bool:
        """Whether the node may still speak. Free as long as its record is the same object."""
        value = certificates.value(self.node)
        if value is self._seen:
            return True
        if value is None or _read(value).life != self.life:
            return False
        self._seen = value
        return True


class Certificates:
    def __init__(
        self, engine: Engine, authority: Authority, servers: tuple[str, ...] = (), *,
        life_ms: int = CERTIFICATE_MS, forgetful: bool = False,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.authority = authority
        self.servers: Callable[[], tuple[str, ...]] = lambda: servers  # where agents connect
        self._life_ms = life_ms
        self._forgetful = forgetful  # the store starts empty: a node with a certificate of ours is stored again
        self._known: set[str] = set()  # nodes that had a record in this life of a forgetful server

    def value(self, node: str) -> bytes | None:
        return self.engine.state.opaque_records.get(KIND, {}).get(node)

    def is_current(self, node: str, certificate: str) -> bool:
        value = self.value(node)
        return value is not None and _read(value).current == fingerprint(certificate)

    async def admit(self, peer: Peer) -> NodeCredential:
        """Admit a node whose certificate is the current one of its name, or the one before. Raises Refused."""
        if peer.kind != "node":
            raise Refused(f"this is for nodes; the certificate is of {peer.kind} {peer.name}")
        value = self.value(peer.name)
        if value is None and self._forgetful and peer.name not in self._known:
            value = await self._know_again(peer)
        if value is None:
            raise Refused(f"the certificate of node {peer.name} was revoked; a new join token is needed")
        self._known.add(peer.name)
        record = _read(value)
        if peer.fingerprint not in (record.current, record.previous):
            raise Refused(f"node {peer.name} has another certificate by now; a new join token is needed")
        return NodeCredential(peer.name, value)

    async def enrol(
        self, node: str, request: str, pool: str = "", extra: tuple[OpaqueRecord, ...] = (), by: By | None = None, *,
        local: bool = False,
    ) -> Credential:  # fmt: skip
        """Let a node join, all or nothing with `extra`. Raises Conflict if another machine has the name.

        `local`: for a process that can read the server's own directory, and so may have every name.
        """
        check_node_name(node, "node")
        was = self.value(node)
        if was is not None and not local:
            self._check_free(node, _read(was))
        issued = self.authority.for_node(node, request, self._life_ms, pool)
        life = os.urandom(LIFE_BYTES).hex()
        current = fingerprint(issued.certificate)
        record = NodeRecord(life, current, issued.expires_ms, pool=pool, joined_ms=issued.issued_ms)
        records = (*extra, *self._expired(node), OpaqueRecord(KIND, node, _pack(record), was))
        await self.engine.ask(partial(PutRecords, records=records), by)
        self._known.add(node)
        log.info(f"node {node} has joined", certificate=current[:16], pool=pool)
        return msgspec.structs.replace(issued, servers=self.servers(), series=series_of(self.engine.state))

    async def renew(self, peer: Peer, request: str) -> Credential:
        """The next certificate of a node, for a new key. Raises Refused."""
        for _ in range(TRIES_MAX):
            await self.admit(peer)
            was = self.value(peer.name)
            if was is None:
                continue
            node_record = _read(was)
            issued = self.authority.for_node(peer.name, request, self._life_ms, node_record.pool)
            current = fingerprint(issued.certificate)
            record = msgspec.structs.replace(
                node_record, current=current, previous=peer.fingerprint, expires_ms=issued.expires_ms
            )
            stored = OpaqueRecord(KIND, peer.name, _pack(record), was)
            try:
                await self.engine.ask(partial(PutRecords, records=(stored,)))
            except Conflict:
                continue
            log.info(f"node {peer.name} has renewed its certificate", certificate=current[:16])
            return msgspec.structs.replace(issued, servers=self.servers())
        raise NoService("others change the same record; try again in a moment", code="busy")

    def _check_free(self, node: str, record: NodeRecord) -> None:
        """A name belongs to the holder of its certificate until that ends, or its node is lost or removed."""
        existing = self.engine.state.nodes.get(node)
        if record.expires_ms < now_ms() or (existing is not None and existing.status in ABSENT):
            return
        status = existing.status if existing is not None else "not seen yet"
        message = f"another machine has joined as {node} ({status})"
        raise Conflict(f"{message}; choose another --name, or `roost nodes remove {node}` first", code="node_exists")

    def _expired(self, joining: str) -> list[OpaqueRecord]:
        """When there are many: deletions of expired records of nodes that are gone."""
        records, nodes, now = self.engine.state.opaque_records.get(KIND, {}), self.engine.state.nodes, now_ms()
        if len(records) < RECORDS_MANY:
            return []
        gone = ((name, value) for name, value in records.items() if name not in nodes and name != joining)
        return [OpaqueRecord(KIND, name, None, value) for name, value in gone if _read(value).expires_ms < now]

    async def _know_again(self, peer: Peer) -> bytes | None:
        """A store without memory lost the record: trust the CA's signature and store the certificate again."""
        life = os.urandom(LIFE_BYTES).hex()
        record = NodeRecord(life, peer.fingerprint, now_ms() + self._life_ms, pool=peer.pool)
        stored = OpaqueRecord(KIND, peer.name, _pack(record), None)
        with suppress(Conflict):  # two streams of one agent at once: the other one has stored it
            await self.engine.ask(partial(PutRecords, records=(stored,)))
        return self.value(peer.name)


def peer_of(context: "grpc.aio.ServicerContext[Any, Any]") -> Peer | None:
    """The peer of a verified certificate; None: it is no node or server of ours."""
    facts = context.auth_context()
    names = [fact.decode("ascii", "replace") for fact in facts.get("peer_uri", ())]
    pem = next(iter(facts.get("x509_pem_cert", ())), b"")
    if len(names) != 1 or not pem:
        return None
    kind, separator, name = names[0].removeprefix("roost://").partition("/")
    if not names[0].startswith("roost://") or kind not in ("node", "server") or not separator or not name:
        return None
    subject = next(iter(facts.get("x509_subject", ())), b"").decode("ascii", "replace")
    units = [part.removeprefix("OU=") for part in subject.split(",") if part.startswith("OU=")]
    return Peer(kind, name, fingerprint(pem.decode("ascii")), units[0] if units else "")


_pack = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(NodeRecord).decode
