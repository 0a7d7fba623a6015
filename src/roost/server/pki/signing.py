"""Keys and certificates as X.509 has them. Importing `cryptography` takes 50 ms: `authority.py` imports this late."""

import datetime
import ipaddress
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from roost.model.errors import Invalid
from roost.model.records.enrolment import REQUEST_LENGTH_MAX

EARLY_MS = 3_600_000  # valid from an hour ago: clocks of two machines differ
USES = {
    "node": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "server": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
}


def sign(
    authority: tuple[str, bytes], kind: Literal["node", "server"], name: str, key: ec.EllipticCurvePublicKey,
    now_ms: int, life_ms: int, *, hosts: tuple[str, ...] = (), unit: str = "",
) -> str:  # fmt: skip
    """A certificate in PEM, signed by a CA: its certificate and key, in PEM."""
    own = load_pem_private_key(authority[1], None)  # 50 us each time
    assert isinstance(own, ec.EllipticCurvePrivateKey), "the CA's key is one of ours"
    issuer = x509.load_pem_x509_certificate(authority[0].encode()).subject
    names = [*map(_host_name, hosts), x509.UniformResourceIdentifier(f"roost://{kind}/{name}")]
    builder = (
        _builder(_subject(name, unit), issuer, key, now_ms, life_ms)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(USES[kind]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own.public_key()), critical=False)
    )
    return _signed(builder, own)


def self_signed(name: str, now_ms: int, life_ms: int) -> tuple[str, bytes]:
    """Certificate and key of a new CA, in PEM."""
    key = new_key()
    uses = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    builder = (
        _builder(_subject(name), _subject(name), key.public_key(), now_ms, life_ms)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **uses), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _signed(builder, key), key_pem(key)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def requested_key(request: str) -> ec.EllipticCurvePublicKey:
    """The key of a certificate request whose sender has proved that it has the private key. Raises Invalid."""
    if len(request) > REQUEST_LENGTH_MAX:
        raise Invalid("request", f"a certificate request has at most {REQUEST_LENGTH_MAX:,} characters")
    try:
        asked = x509.load_pem_x509_csr(request.encode())
        key = asked.public_key()
        is_signed = asked.is_signature_valid
    except Exception:  # a parser of foreign bytes may raise anything
        raise Invalid("request", "this is not a PKCS #10 certificate request in PEM") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Invalid("request", "a node's key is on the curve P-256")
    if not is_signed:
        raise Invalid("request", "the request is not signed with its own key")
    return key


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now_ms: int, life_ms: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.fromtimestamp((now_ms - EARLY_MS) / 1_000, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp((now_ms + life_ms) / 1_000, datetime.UTC))
    )


def _subject(name: str, unit: str = "") -> x509.Name:
    units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    return x509.Name([*units, x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # X.509 allows no more


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> str:
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
