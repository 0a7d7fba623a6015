"""Authority: Roost's own CA. Its certificate is stored in the open and its key sealed; it issues to servers and nodes.

A node's certificate is good for a client only and a server's for both, so no node can play a server. `cryptography`
takes 50 ms to import, so it is imported when something is issued: a server that starts again issues nothing.
"""

import asyncio
import base64
import datetime
import hashlib
import ipaddress
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from roost.model.errors import Conflict, Invalid, NoService
from roost.model.events import PutRecords
from roost.model.records.enrolment import REQUEST_LENGTH_MAX, Bundle
from roost.model.records.opaque import OpaqueRecord
from roost.server.config import CERTIFICATE_MS
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.encryption import Seal, Unsealable

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

KIND, NAME = "authority", "ca"
SERVER_NAME = "roost-server"  # in every server's certificate, so that agents need not know by which name they reach it
DAY_MS = 86_400_000
AUTHORITY_LIFE_MS = 3_650 * DAY_MS  # ten years: changing it means that every node joins again
EARLY_MS = 3_600_000  # valid from an hour ago: clocks of two machines differ
LEAD_S_MAX = 15.0  # for becoming the leader, where that is needed: several times as long as it takes
LOOK_S = 0.05  # a server that does not lead looks so often whether the leader has made the CA

log = logging.logger("authority")


class AuthorityUnavailable(Exception):
    """Why there is no CA to be had, in one sentence for the operator."""


class Record(msgspec.Struct, frozen=True):
    """The CA as it is stored: PEM, and the key's PEM sealed."""

    certificate: str
    key: bytes


class Issued(NamedTuple):
    """A certificate for the holder of the key."""

    certificate: str
    fingerprint: str
    issued_ms: int
    expires_ms: int


class Authority:
    """The CA, open for issuing."""

    def __init__(self, certificate: str, key: bytes) -> None:
        self.certificate = certificate
        self.fingerprint = fingerprint(certificate)
        self._pem = key
        self._opened: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None

    def for_server(self, name: str, hosts: tuple[str, ...], life_ms: int = CERTIFICATE_MS) -> Bundle:
        """A certificate and a new key for a server that is reached by these names and addresses."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509 import UniformResourceIdentifier
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        names = [_general_name(host) for host in (SERVER_NAME, *hosts)]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names.append(UniformResourceIdentifier(f"roost://server/{name}"))
        issued = self._issue(name, key.public_key(), names, uses, life_ms)
        return Bundle(
            _key_pem(key).decode(), issued.certificate, self.certificate, name, issued.issued_ms, issued.expires_ms,
            hosts=hosts,
        )  # fmt: skip

    def for_node(self, node: str, request: str, life_ms: int = CERTIFICATE_MS, pool: str = "") -> Issued:
        """A certificate for the key of a node's request; whatever else the request says does not count."""
        from cryptography.x509 import UniformResourceIdentifier
        from cryptography.x509.oid import ExtendedKeyUsageOID

        names = [UniformResourceIdentifier(f"roost://node/{node}")]
        return self._issue(node, _requested_key(request), names, [ExtendedKeyUsageOID.CLIENT_AUTH], life_ms, pool)

    def sealed(self, seal: Seal) -> bytes:
        """Its key, as it may be stored."""
        return seal.seal(f"{KIND}/{NAME}", self._pem)

    def _issue(
        self, name: str, key: "ec.EllipticCurvePublicKey", names: Any, uses: Any, life_ms: int, unit: str = ""
    ) -> Issued:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        authority, signing_key = self._open()
        now = now_ms()
        builder = (
            _builder(_subject(name, unit), authority.subject, key, now, life_ms)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        )
        pem = _pem(builder.sign(signing_key, hashes.SHA256()))
        return Issued(pem, fingerprint(pem), now, now + life_ms)

    def _open(self) -> "tuple[x509.Certificate, ec.EllipticCurvePrivateKey]":
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        if self._opened is None:
            key = serialization.load_pem_private_key(self._pem, None)
            assert isinstance(key, ec.EllipticCurvePrivateKey), "the CA's key is one of ours"
            self._opened = x509.load_pem_x509_certificate(self.certificate.encode()), key
        return self._opened


def make_authority() -> Authority:
    """A new CA."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = f"Roost CA {os.urandom(4).hex()}"  # two that follow each other have different names
    uses = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    builder = (
        _builder(_subject(name), _subject(name), key.public_key(), now_ms(), AUTHORITY_LIFE_MS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **uses), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


async def open_authority(engine: Engine, seal: Seal, file: Path | None = None, *, anew: bool = False) -> Authority:
    """The CA that is stored; the first leader that finds none makes it. `file` keeps it for a store that forgets.

    `anew` puts a new one into its place: all nodes have to join again. Raises Unavailable.
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
    """Of a certificate in PEM, or of the first of several: SHA-256 in hexadecimal digits."""
    body = certificate.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
    return hashlib.sha256(base64.b64decode(body)).hexdigest()


def now_ms() -> int:
    """The wall clock, which is what certificates are held against."""
    return time.time_ns() // 1_000_000


async def _keep_first(engine: Engine, seal: Seal, file: Path | None, there: bytes | None, anew: bool) -> bool:
    """Store a new CA, or the one of the file. Certificates of another one mean nothing, so they go. False: too late."""
    existing = file.read_bytes() if file is not None and not anew and file.exists() else None
    if existing is None:
        made = make_authority()
        existing = _pack(Record(made.certificate, made.sealed(seal)))
        tell = log.warning if there is not None else log.info
        tell("a new CA was made", fingerprint=made.fingerprint, replaced=there is not None)
    gone = tuple(OpaqueRecord("certificate", node, None) for node in engine.state.opaque_records.get("certificate", {}))
    records = (OpaqueRecord(KIND, NAME, existing, there), *gone)
    try:
        await engine.ask(lambda request: PutRecords(request, records))
    except (Conflict, NoService):  # another server was first, or leads by now: look again
        return False
    if file is not None:
        file.touch(mode=0o600)
        file.write_bytes(existing)  # sealed, as in a store
    return True


async def _opened(engine: Engine, seal: Seal, value: bytes) -> Authority:
    record = msgspec.msgpack.decode(value, type=Record)
    try:
        key = seal.open(f"{KIND}/{NAME}", record.key)
    except Unsealable as error:
        message = f"the CA's key cannot be opened: {error}; every server of one store needs the same --key-file"
        hint = "if the key is lost for good, start once with --new-authority and let all nodes join again"
        raise AuthorityUnavailable(f"{message}; {hint}") from None
    if not seal.is_newest(record.key) and engine.ready:
        again = _pack(Record(record.certificate, Authority(record.certificate, key).sealed(seal)))
        try:
            await engine.ask(lambda request: PutRecords(request, (OpaqueRecord(KIND, NAME, again, value),)))
            log.warning("the CA's key was sealed again with the newest key")
        except (Conflict, NoService) as error:
            log.warning("the CA's key was not sealed again; the next start tries once more", reason=str(error))
    return Authority(record.certificate, key)


def _requested_key(request: str) -> "ec.EllipticCurvePublicKey":
    """The key of a certificate request whose sender has shown that it holds the other half. Raises Invalid."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    if len(request) > REQUEST_LENGTH_MAX:
        raise Invalid("request", f"a certificate request has at most {REQUEST_LENGTH_MAX:,} characters")
    try:
        asked = x509.load_pem_x509_csr(request.encode())
        key = asked.public_key()
        is_signed = asked.is_signature_valid
    except Exception:  # what a parser of foreign bytes may raise is not to be listed
        raise Invalid("request", "this is not a PKCS #10 certificate request in PEM") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Invalid("request", "a node's key is on the curve P-256")
    if not is_signed:
        raise Invalid("request", "the request is not signed with its own key")
    return key


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePublicKey", now: int, life_ms: int
) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now - EARLY_MS))
        .not_valid_after(_moment(now + life_ms))
    )


def _subject(name: str, unit: str = "") -> "x509.Name":
    from cryptography import x509

    units = [x509.NameAttribute(x509.NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    return x509.Name([*units, x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])  # X.509 has no room for more


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: "x509.Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _moment(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC)


_pack = msgspec.msgpack.Encoder().encode
