"""Identity: a node's key and certificate, kept in one file and renewed while the agent runs.

The key never leaves this machine. `cryptography` is imported when a key is made, not when an agent starts.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable

import grpc
import msgspec

from roost.agent.config import replace_file
from roost.agent.connection.server_list import SERVERS_MAX
from roost.agent.log import log
from roost.model.errors import Invalid
from roost.model.records.enrolment import Bundle, Credential, read_bundle
from roost.wire import agent_pb2 as pb

FILE = "certificate.pem"
RENEW = "/roost.agent.v1.Agents/Renew"
LOOK_S_MAX = 600.0  # a machine that slept for a month looks at its clock soon after
RENEW_AGAIN_S_MIN, RENEW_AGAIN_S_MAX = 30.0, 3_600.0  # a third of a life is left: no hurry
RENEW_S_MAX = 30.0

OpenChannel = Callable[[Bundle], "grpc.aio.Channel"]


class NodeIdentity:
    """The file with key and certificate, read again when it has changed."""

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{FILE}"
        self._seen: tuple[int, int] = (0, 0)
        self._bundle: Bundle | None = None

    def read(self) -> Bundle | None:
        """What is there; None: this machine has not joined yet. Raises ValueError for what cannot be read."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            self._bundle = None
            return None
        seen = (found.st_mtime_ns, found.st_ino)
        if self._bundle is None or seen != self._seen:
            try:
                with open(self.path, encoding="ascii") as file:
                    self._bundle = read_bundle(file.read())
            except (OSError, ValueError) as error:
                raise ValueError(f"{self.path} is not a certificate that can be read: {error}") from None
            self._seen = seen
        return self._bundle

    def learn(self, servers: Iterable[str], series: int) -> None:
        """Remember where servers are, for an agent that starts while the one we joined is away, and which of their
        certificates were revoked."""
        bundle = self.read()
        if bundle is not None:
            merged = tuple(dict.fromkeys((*servers, *bundle.servers)))[:SERVERS_MAX]
            if set(merged) != set(bundle.servers) or series > bundle.series:
                newest = max(series, bundle.series)
                self.write(msgspec.structs.replace(bundle, servers=merged, series=newest))

    def exists(self) -> bool:
        return os.path.exists(self.path)

    def write(self, bundle: Bundle) -> None:
        replace_file(self.path, bundle.text())


async def keep_renewed(identity: NodeIdentity, open_channel: OpenChannel) -> None:
    """Ask for the next certificate when two thirds of the life of this one are over. Failures are waited out."""
    again_s = RENEW_AGAIN_S_MIN
    while True:
        try:
            bundle = identity.read()
        except (OSError, ValueError):
            bundle = None  # the link logs it
        due_s = (bundle.renew_ms - now_ms()) / 1_000 if bundle is not None else LOOK_S_MAX
        if bundle is None or due_s > 0 or bundle.expires_ms <= now_ms():
            await asyncio.sleep(min(max(due_s, 1.0), LOOK_S_MAX))
            continue
        try:
            await renew(identity, open_channel, bundle)
            again_s = RENEW_AGAIN_S_MIN
        except (grpc.aio.AioRpcError, OSError, ValueError, TimeoutError) as error:
            message = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            log(f"the certificate could not be renewed, which is tried again: {message}")
            await asyncio.sleep(again_s)
            again_s = min(again_s * 2, RENEW_AGAIN_S_MAX)


async def renew(identity: NodeIdentity, open_channel: OpenChannel, bundle: Bundle) -> None:
    """One attempt, on a connection of its own that shows the newest certificate."""
    key, request = await asyncio.to_thread(make_request, bundle.name)
    message = pb.Renewal(request=request).SerializeToString()
    async with open_channel(bundle) as channel:
        data = await channel.unary_unary(RENEW)(message, timeout=RENEW_S_MAX, wait_for_ready=True)
    given = pb.Renewed.FromString(data)
    servers = tuple(given.servers) or bundle.servers
    renewed = Credential(
        given.certificate, given.authority, servers, given.issued_ms, given.expires_ms, series=bundle.series
    )
    identity.write(bundle_of(bundle.name, key, renewed))
    log("the certificate was renewed")


def credentials_of(bundle: Bundle) -> grpc.ChannelCredentials:
    """Of a node's connection to a server: it shows its certificate, and wants one of the same CA."""
    return grpc.ssl_channel_credentials(bundle.authority.encode(), bundle.key.encode(), bundle.certificate.encode())


def make_request(node: str) -> tuple[str, str]:
    """A new key and a request for a certificate for it, both in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem.decode(), request.public_bytes(Encoding.PEM).decode()


def bundle_of(node: str, key: str, given: Credential) -> Bundle:
    about = (node, given.issued_ms, given.expires_ms, given.servers)
    return Bundle(key, given.certificate, given.authority, *about, series=given.series)


def now_ms() -> int:
    """The wall clock, which is what certificates are held against."""
    return time.time_ns() // 1_000_000


def check_own(bundle: Bundle, node: str) -> None:
    """Refuse a certificate that is of no use to this agent. Raises Invalid."""
    if bundle.name != node:
        message = f"the certificate in --dir is of node {bundle.name}, not of {node}"
        raise Invalid("--name", f"{message}; take another --dir, or join again with --join TOKEN")
