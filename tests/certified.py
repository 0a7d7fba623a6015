"""A CA for tests, made once per process, and certificates of it: cheap enough for every connection."""

from functools import cache

import grpc

from roost.agent.connection.identity import credentials_of, make_request
from roost.model.records.enrolment import SERVER_NAME, Bundle
from roost.server.config import CERTIFICATE_MS
from roost.server.pki.authority import Authority, make_authority

CHANNEL = (
    ("grpc.max_receive_message_length", -1),  # as agents
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.ssl_target_name_override", SERVER_NAME),
)


@cache
def authority() -> Authority:
    """The CA of this process."""
    return make_authority()


@cache
def another_authority() -> Authority:
    """A CA that is not trusted here."""
    return make_authority()


@cache
def node_bundle(name: str) -> Bundle:
    """Key and certificate of a node, the same for every test."""
    return new_bundle(name)


def new_bundle(name: str, by: Authority | None = None, life_ms: int = CERTIFICATE_MS) -> Bundle:
    """A new key and certificate for a node."""
    by = by or authority()
    key, request = make_request(name)
    issued = by.for_node(name, request, life_ms)
    return Bundle(key, issued.certificate, by.certificate, name, issued.issued_ms, issued.expires_ms)


def server_credentials() -> grpc.ServerCredentials:
    """Of a server of this CA."""
    bundle = _server_bundle()
    pair = (bundle.key.encode(), bundle.certificate.encode())
    return grpc.ssl_server_credentials([pair], authority().certificate.encode(), require_client_auth=True)


def channel_to(port: int, bundle: Bundle) -> grpc.aio.Channel:
    """A connection to a server of this machine that shows this certificate."""
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials_of(bundle), options=CHANNEL)


@cache
def _server_bundle() -> Bundle:
    return authority().for_server("server", ("127.0.0.1",))
