"""Bootstrap: the CA, the certificates and the join tokens of a server, from its settings. Done before it listens."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from roost.server.config import ServerConfig
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.authority import AuthorityUnavailable, open_authority
from roost.server.pki.certificates import Certificates
from roost.server.pki.encryption import Seal, key_from_command, key_from_file, make_key_file
from roost.server.pki.enrolment import Joining
from roost.server.pki.tls import OperatorCertificate, ServerCertificate, ServerTls, advertised, write_secret

AUTHORITY_FILE = "authority.sealed"  # of a server whose store forgets: the CA, its key sealed
CA_FILE = "ca.pem"  # the CA's certificate, for clients that verify this server
SEAL_FILE = "seal.key"
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
        listening = {config.host, config.agents_host, (config.controller_listen or (config.host, 0))[0]}
        hosts = tuple(name for host in sorted(listening) for name in advertised(host, config.advertise))
        name = config.name or NAME_ODD.sub("-", socket.gethostname())[:63] or "server"
        server = ServerCertificate(authority, name, hosts, config.data, config.certificate_ms)
        write_secret(config.data / CA_FILE, authority.certificate)
    except OSError as error:
        raise AuthorityUnavailable(f"certificates cannot be kept in {config.data}: {error.strerror or error}") from None
    api = OperatorCertificate(config.tls_cert, config.tls_key) if config.tls_cert and config.tls_key else server
    transport = ServerTls(server, api if config.serves_tls() else None)
    certificates = Certificates(engine, authority, life_ms=config.certificate_ms, forgetful=forgetful)
    joining.begin(certificates, api_urls(config, api_port))
    return Secured(transport, certificates, seal)


def api_urls(config: ServerConfig, port: int) -> tuple[str, ...]:
    if not config.serves_tls() and config.is_reachable:
        log.warning("API and controllers without TLS: tokens can be read on the network", host=config.host)
    scheme = "https" if config.serves_tls() else "http"
    return tuple(f"{scheme}://{_joined(host, port)}" for host in advertised(config.host, config.advertise))


def agents_addresses(config: ServerConfig, port: int) -> tuple[str, ...]:
    return tuple(_joined(host, port) for host in advertised(config.agents_host, config.advertise))


def open_seal(config: ServerConfig) -> Seal:
    """The key for sealing at rest: the operator's, or one of our own that is made on first use."""
    keys = [key_from_file(path) for path in config.key_files]
    if config.key_command:
        keys.insert(0, key_from_command(config.key_command))
    if not keys:
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        keys = [make_key_file(config.data / SEAL_FILE)]
    return Seal(*keys)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


PORT_MAX = 65_535
PORTS_ON = 2  # from the API's port: the one between them is the agents'

log = logging.logger("controller")


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
    host = advertised(listen, config.advertise)[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
