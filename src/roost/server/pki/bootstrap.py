"""Bootstrap: the CA, the certificates and the join tokens of a server, from its settings. Done before it listens."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from roost.model.keys import host_and_port
from roost.server.config import AUTHORITY_FILE, PORT_MAX, ServerConfig, is_loopback
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.authority import AuthorityUnavailable, open_authority
from roost.server.pki.certificates import Certificates
from roost.server.pki.encryption import Seal, key_from_command, key_from_file, make_key_file
from roost.server.pki.enrolment import Joining
from roost.server.pki.revocation import series_of
from roost.server.pki.tls import OperatorCertificate, ServerCertificate, ServerTls, advertised
from roost.server.private_files import replacing

CA_FILE = "ca.pem"  # the CA's certificate, for clients that verify this server
SEAL_FILE = "seal.key"
PORTS_ON = 2  # from the API's port: the one between them is the agents'
NAME_ODD = re.compile(r"[^A-Za-z0-9_.-]")

log = logging.logger("secure")

Enrol = Callable[[Certificates], Awaitable[None]]


class Secured(NamedTuple):
    transport: ServerTls
    certificates: Certificates
    seal: Seal


async def secure(config: ServerConfig, engine: Engine, joining: Joining, api_port: int) -> Secured:
    """Open or make the CA, and everything that depends on it. Raises AuthorityUnavailable, Invalid."""
    seal = await asyncio.to_thread(open_seal, config) if config.key_command else open_seal(config)
    forgetful = config.store == "memory"
    file = config.data / AUTHORITY_FILE if forgetful else None
    try:
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = await open_authority(engine, seal, file, anew=config.new_authority)
        listening = {config.host, config.agents_host, config.controller_host}
        hosts = tuple(name for host in sorted(listening) for name in advertised(host, config.advertise))
        name = config.name or NAME_ODD.sub("-", socket.gethostname())[:63] or "server"
        server = ServerCertificate(
            authority, name, hosts, config.data, config.certificate_ms, lambda: series_of(engine.state)
        )
        with replacing(config.data / CA_FILE) as public:
            public.write(authority.certificate.encode())
    except OSError as error:
        raise AuthorityUnavailable(f"certificates cannot be kept in {config.data}: {error.strerror or error}") from None
    api = OperatorCertificate(config.tls_cert, config.tls_key) if config.tls_cert and config.tls_key else server
    transport = ServerTls(server, api)
    warn_of_plain_listeners(config)
    certificates = Certificates(engine, authority, life_ms=config.certificate_ms, forgetful=forgetful)
    joining.begin(certificates, api_urls(config, api_port))
    return Secured(transport, certificates, seal)


def api_urls(config: ServerConfig, port: int) -> tuple[str, ...]:
    scheme = "https" if config.encrypts(config.host) else "http"
    return tuple(f"{scheme}://{host_and_port(host, port)}" for host in advertised(config.host, config.advertise))


def warn_of_plain_listeners(config: ServerConfig) -> None:
    hosts = {"API": config.host, **({"controllers": config.controller_host} if config.controllers else {})}
    for listener, host in hosts.items():
        if not config.encrypts(host) and not is_loopback(host):
            log.warning("a listener without TLS: tokens can be read on the network", listener=listener, host=host)


def agents_addresses(config: ServerConfig, port: int) -> tuple[str, ...]:
    return tuple(host_and_port(host, port) for host in advertised(config.agents_host, config.advertise))


def open_seal(config: ServerConfig) -> Seal:
    """The key for sealing at rest: the operator's, or one of our own that is made on first use."""
    keys = [key_from_file(path) for path in config.key_files]
    if config.key_command:
        keys.insert(0, key_from_command(config.key_command))
    if not keys:
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        keys = [make_key_file(config.data / SEAL_FILE)]
    return Seal(*keys)


def choose_port(config: ServerConfig, api_port: int) -> ServerConfig:
    """The same settings with a free port. A port that was not configured must not keep a server from starting."""
    host, wanted = config.controller_listen or (config.host, 0)
    if not config.controllers or wanted:
        return config
    usual = api_port + PORTS_ON if config.port and config.controller_listen is None else 0
    for port in (usual, 0):
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port if port <= PORT_MAX else 0))
                chosen = int(probe.getsockname()[1])
        except OSError:
            continue
        if usual and chosen != usual:
            log.warning("the usual port for controllers is in use; another one is taken", usual=usual, taken=chosen)
        return replace(config, controller_listen=(host, chosen))
    return replace(config, controller_listen=(host, usual))  # gRPC says what is wrong with it


def controller_address(config: ServerConfig) -> str:
    """Where controllers connect, as HOST:PORT; empty: nowhere."""
    if not config.controllers or config.controller_listen is None:
        return ""
    listen, port = config.controller_listen
    return host_and_port(advertised(listen, config.advertise)[0], port)
