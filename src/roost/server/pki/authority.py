"""Authority: Roost's own CA. Its certificate is stored in the open and its key sealed; it issues to servers and nodes.

A node's certificate is good for a client only and a server's for both, so no node can pose as a server.
`signing.py` is imported when something is issued: a restarted server issues nothing.
"""

import asyncio
import base64
import hashlib
import os
import time
from functools import partial
from pathlib import Path

import msgspec

from roost.core.state.state import State
from roost.model.errors import Conflict, NoService
from roost.model.events import PutRecords
from roost.model.records.enrolment import Bundle, Credential, server_names
from roost.model.records.opaque import OpaqueRecord
from roost.server.config import CERTIFICATE_MS
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.encryption import Seal, Unsealable
from roost.server.private_files import replacing

KIND, NAME = "authority", "ca"
DAY_MS = 86_400_000
AUTHORITY_LIFE_MS = 3_650 * DAY_MS  # ten years: after a change of the CA every node must join again
LEAD_S_MAX = 15.0  # for becoming the leader, where that is needed: several times as long as it takes
LOOK_S = 0.05  # how often a standby checks whether the leader has made the CA

log = logging.logger("authority")


class AuthorityUnavailable(Exception):
    """Why there is no CA, in one sentence for the operator."""


class Record(msgspec.Struct, frozen=True):
    """The CA as it is stored: PEM, and the key's PEM sealed."""

    certificate: str
    key: bytes


class Authority:
    def __init__(self, certificate: str, key: bytes) -> None:
        self.certificate = certificate
        self.fingerprint = fingerprint(certificate)
        self._pair = (certificate, key)

    def for_server(self, name: str, hosts: tuple[str, ...], life_ms: int = CERTIFICATE_MS, series: int = 0) -> Bundle:
        """A certificate and a new key for a server that is reached by these names and addresses."""
        from roost.server.pki import signing

        key, now = signing.new_key(), now_ms()
        names = (*server_names(series), *hosts)
        certificate = signing.sign(self._pair, "server", name, key.public_key(), now, life_ms, hosts=names)
        key_pem = signing.key_pem(key).decode()
        return Bundle(key_pem, certificate, self.certificate, name, now, now + life_ms, hosts=hosts, series=series)

    def for_node(self, node: str, request: str, life_ms: int = CERTIFICATE_MS, pool: str = "") -> Credential:
        """A certificate for the key of a node's request; everything else in the request is ignored."""
        from roost.server.pki import signing

        key, now = signing.requested_key(request), now_ms()
        certificate = signing.sign(self._pair, "node", node, key, now, life_ms, unit=pool)
        return Credential(certificate, self.certificate, (), now, now + life_ms, pool)

    def record(self, seal: Seal) -> bytes:
        return msgspec.msgpack.encode(Record(self.certificate, seal.seal(f"{KIND}/{NAME}", self._pair[1])))


def make_authority() -> Authority:
    from roost.server.pki.signing import self_signed

    name = f"Roost CA {os.urandom(4).hex()}"  # a CA and its successor have different names
    return Authority(*self_signed(name, now_ms(), AUTHORITY_LIFE_MS))


async def open_authority(engine: Engine, seal: Seal, file: Path | None = None, *, anew: bool = False) -> Authority:
    """The stored CA; the first leader that finds none makes it. `file` keeps it for a store without memory.

    `anew` replaces it: all nodes have to join again. Raises AuthorityUnavailable.
    """
    deadline = time.monotonic() + LEAD_S_MAX
    while True:
        value = engine.state.opaque_records.get(KIND, {}).get(NAME) if engine.readable else None
        if value is not None and not anew:
            return await _opened(engine, seal, value)
        if engine.ready:
            anew = not await _keep_first(engine, seal, file, value, anew) and anew
        elif anew and time.monotonic() > deadline:
            message = "a new CA is made by the server that leads, and another one does"
            raise AuthorityUnavailable(
                f"{message}: stop all of them, start one with --new-authority, then the others without"
            )
        else:
            await asyncio.sleep(LOOK_S)


def fingerprint(certificate: str) -> str:
    """SHA-256 of a certificate in PEM, or of the first of several, in hexadecimal digits."""
    body = certificate.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
    return hashlib.sha256(base64.b64decode(body)).hexdigest()


def now_ms() -> int:
    """The wall clock: certificates are valid by it."""
    return time.time_ns() // 1_000_000


def identity_of(state: State) -> bytes:
    """What all servers of one state have in common, and no others: the certificate of their CA."""
    value = state.opaque_records.get(KIND, {}).get(NAME)
    return b"" if value is None else msgspec.msgpack.decode(value, type=Record).certificate.encode()


async def _keep_first(engine: Engine, seal: Seal, file: Path | None, there: bytes | None, anew: bool) -> bool:
    """Store a new CA, or the one of the file, and delete the certificates of another one. False: too late."""
    existing = file.read_bytes() if file is not None and not anew and file.exists() else None
    if existing is None:
        made = make_authority()
        existing = made.record(seal)
        tell = log.warning if there is not None else log.info
        tell("a new CA was made", fingerprint=made.fingerprint, replaced=there is not None)
    gone = [OpaqueRecord("certificate", node, None) for node in engine.state.opaque_records.get("certificate", {})]
    try:
        await engine.ask(partial(PutRecords, records=(OpaqueRecord(KIND, NAME, existing, there), *gone)))
    except (Conflict, NoService):  # another server was first, or leads by now: look again
        return False
    if file is not None:
        with replacing(file) as new:
            new.write(existing)  # sealed, as in a store
    return True


async def _opened(engine: Engine, seal: Seal, value: bytes) -> Authority:
    record = msgspec.msgpack.decode(value, type=Record)
    try:
        authority = Authority(record.certificate, seal.open(f"{KIND}/{NAME}", record.key))
    except Unsealable as error:
        message = f"the CA's key cannot be opened: {error}; every server of one store needs the same --key-file"
        hint = "if the key is lost for good, start once with --new-authority and let all nodes join again"
        raise AuthorityUnavailable(f"{message}; {hint}") from None
    if not seal.is_newest(record.key) and engine.ready:
        resealed = OpaqueRecord(KIND, NAME, authority.record(seal), value)
        try:
            await engine.ask(partial(PutRecords, records=(resealed,)))
            log.warning("the CA's key was sealed again with the newest key")
        except (Conflict, NoService) as error:
            log.warning("the CA's key was not sealed again; the next start tries once more", reason=str(error))
    return authority
