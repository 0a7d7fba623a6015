"""Joining: what a new machine is given, asks for and keeps, so that it and its server know each other from then on."""

import base64
import re

import msgspec

from roost.model.errors import Invalid

TOKEN_PREFIX = "roost-join-"
TOKEN_LENGTH_MAX = 4_096  # three addresses, a fingerprint and a secret are 300
REQUEST_LENGTH_MAX = 4_096  # a certificate request of the largest usual key has 1,800
URLS_MAX = 8
SERVER_NAME = "roost-server"  # in every server's certificate, so that agents need not know its host name
SERIES_SHOWN = 16  # in a server's certificate: a node that was away for more revocations joins again

_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\n.*?-----END \1-----\n", re.DOTALL)


class JoinToken(msgspec.Struct, frozen=True, array_like=True):
    """Everything a machine needs to join: servers, the CA's fingerprint, and a secret."""

    urls: tuple[str, ...]
    authority: str
    id: str
    secret: str

    def text(self) -> str:
        return TOKEN_PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a machine asks for. Its key stays with it: `request` is a PKCS #10 certificate request in PEM."""

    id: str
    secret: str
    node: str
    request: str


class Credential(msgspec.Struct, frozen=True):
    """What a node is given: its certificate, the CA's, and where agents connect. PEM; times are of the server."""

    certificate: str
    authority: str
    servers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    pool: str = ""  # as its token says; empty: as its agent says
    series: int = 0  # of the servers' certificates: earlier ones are revoked


class Bundle(msgspec.Struct, frozen=True):
    """In one file, so that they can only change together."""

    key: str
    certificate: str
    authority: str
    name: str
    issued_ms: int
    expires_ms: int
    servers: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    series: int = 0  # a server's: of this certificate; a node's: of those that it accepts, or a later one

    @property
    def renew_ms(self) -> int:
        """From when on it is to be renewed: two thirds of its life, so that a third is left to try."""
        return self.issued_ms + (self.expires_ms - self.issued_ms) * 2 // 3

    def text(self) -> str:
        """As a file: a line of JSON, then PEM, which readers of PEM take as it is."""
        about = {
            "name": self.name, "issued_ms": self.issued_ms, "expires_ms": self.expires_ms, "servers": self.servers,
            "hosts": self.hosts, "series": self.series,
        }  # fmt: skip
        return f"{msgspec.json.encode(about).decode()}\n{self.key}{self.certificate}{self.authority}"


def server_name(series: int) -> str:
    """The name that a server's certificate must have for a client that knows of this series."""
    return f"{SERVER_NAME}-{series}" if series else SERVER_NAME


def server_names(series: int) -> tuple[str, ...]:
    """The names in a certificate of this series: also those for clients that know only of earlier ones."""
    return (SERVER_NAME, *(server_name(number) for number in range(max(1, series - SERIES_SHOWN + 1), series + 1)))


def read_token(text: str) -> JoinToken:
    """Raises Invalid."""
    text = text.strip()
    try:
        if not text.startswith(TOKEN_PREFIX) or len(text) > TOKEN_LENGTH_MAX:
            raise ValueError("it begins otherwise")
        data = text.removeprefix(TOKEN_PREFIX)
        token = msgspec.json.decode(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)), type=JoinToken)
    except ValueError:  # all that base64 and msgspec raise
        message = f"this is not a join token, or not all of it; one begins with {TOKEN_PREFIX}"
        raise Invalid("join", f"{message} and is made by `roost join-tokens create`") from None
    are_urls = all(url.startswith(("http://", "https://")) for url in token.urls)
    if not 0 < len(token.urls) <= URLS_MAX or not are_urls:
        raise Invalid("join", "this token names no server")
    return token


def read_bundle(text: str) -> Bundle:
    """Raises ValueError."""
    about = msgspec.json.decode(text.partition("\n")[0])
    blocks = [found.group() for found in _BLOCK.finditer(text)]
    if not isinstance(about, dict) or len(blocks) != 3 or "PRIVATE KEY" not in blocks[0]:
        raise ValueError("a bundle is a line of JSON, a key and two certificates")
    return msgspec.convert({**about, "key": blocks[0], "certificate": blocks[1], "authority": blocks[2]}, Bundle)
