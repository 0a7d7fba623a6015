"""Transport: how the server shows who it is. mTLS for agents and servers, TLS for the API; renewed while it runs."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import grpc

from roost.model.errors import Invalid
from roost.model.records.enrolment import Bundle, read_bundle
from roost.server.config import CERTIFICATE_MS
from roost.server.observability import logging
from roost.server.pki.authority import Authority, now_ms

FILE = "server.pem"  # in the data directory: certificate and key of this server, for its next start
LOOK_S = 60.0  # how often it is looked at whether something is to be renewed or was replaced by the operator
ALWAYS = ("localhost", "127.0.0.1", "::1")
ANY = frozenset({"", "*", "0.0.0.0", "::"})

log = logging.logger("transport")


class ServerCertificate:
    """This server's certificate of our own CA. Kept in a file, so that a server that starts again issues nothing."""

    def __init__(
        self, authority: Authority, name: str, hosts: tuple[str, ...], data: Path, life_ms: int = CERTIFICATE_MS
    ) -> None:
        self._authority = authority
        self._name = name
        self._hosts = tuple(dict.fromkeys((*hosts, *ALWAYS)))
        self._life_ms = life_ms
        self.path = data / FILE
        self._contexts: list[ssl.SSLContext] = []
        bundle = _read(self.path)
        if bundle is None or not self._is_good(bundle):
            bundle = self._issue()
        self.bundle = bundle
        self._shown: Bundle | None = None  # what gRPC was given last

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """mTLS with our CA: who has no certificate of it is not heard. A renewed certificate is used at once."""
        first = self._grpc_configuration()
        assert first is not None
        return grpc.dynamic_ssl_server_credentials(first, self._grpc_configuration, require_client_authentication=True)

    def ssl_context(self) -> ssl.SSLContext:
        """TLS for the API; renewed in place."""
        context = _context()
        context.load_cert_chain(self.path)
        self._contexts.append(context)
        return context

    def open_credentials(self) -> grpc.ServerCredentials:
        """TLS for gRPC of those who show a token instead of a certificate; renewed like the other."""
        return _open_credentials(lambda: (self.bundle.key.encode(), self.bundle.certificate.encode()))

    def refresh(self) -> None:
        """Renew if it is time for it."""
        if self._is_good(self.bundle):
            return
        self.bundle = self._issue()
        for context in self._contexts:
            context.load_cert_chain(self.path)
        log.info("the server's certificate was renewed", expires_ms=self.bundle.expires_ms)

    def _is_good(self, bundle: Bundle) -> bool:
        return (
            bundle.authority == self._authority.certificate
            and bundle.name == self._name
            and set(self._hosts) <= set(bundle.hosts)
            and now_ms() < bundle.renew_ms
        )

    def _issue(self) -> Bundle:
        bundle = self._authority.for_server(self._name, self._hosts, self._life_ms)
        write_secret(self.path, bundle.text())
        return bundle

    def _grpc_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """For every new connection, on a thread of gRPC's: None means as before."""
        bundle = self.bundle
        if bundle is self._shown:
            return None
        self._shown = bundle
        pair = (bundle.key.encode(), bundle.certificate.encode())
        return grpc.ssl_server_certificate_configuration([pair], bundle.authority.encode())


class OperatorCertificate:
    """The operator's own certificate for the API: files that are read again when they have changed."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._paths = (certificate, key)
        self._context = _context()
        self._seen = _changed(self._paths)
        try:
            self._context.load_cert_chain(certificate, key)
            self._pair = (key.read_bytes(), certificate.read_bytes())
        except (OSError, ssl.SSLError) as error:
            raise Invalid("tls_cert", f"{certificate} with {key} cannot be used: {error}") from None

    def open_credentials(self) -> grpc.ServerCredentials:
        """The same certificate for gRPC."""
        return _open_credentials(lambda: self._pair)

    def ssl_context(self) -> ssl.SSLContext:
        """TLS for the API."""
        return self._context

    def refresh(self, *, always: bool = False) -> None:
        """Read the files again if they have changed. What cannot be used is logged, and the old one stays."""
        seen = _changed(self._paths)
        if seen == self._seen and not always:
            return
        self._seen = seen
        try:
            _context().load_cert_chain(*self._paths)  # half of a new pair must not spoil the one in use
            self._context.load_cert_chain(*self._paths)
            self._pair = (self._paths[1].read_bytes(), self._paths[0].read_bytes())
            log.info("the API's certificate was read again")
        except (OSError, ssl.SSLError) as error:
            log.error("the API's new certificate cannot be used; the old one stays", error=str(error))


class ServerTls:
    """The certificates that are shown to clients, kept up to date."""

    def __init__(self, server: ServerCertificate, api: ServerCertificate | OperatorCertificate | None) -> None:
        self.server = server
        self._api = api  # None: no TLS for the API

    def api_context(self) -> ssl.SSLContext | None:
        """For the HTTP server."""
        return self._api.ssl_context() if self._api is not None else None

    def controller_credentials(self) -> grpc.ServerCredentials | None:
        """For controllers over gRPC: as the API."""
        return self._api.open_credentials() if self._api is not None else None

    @property
    def is_operators(self) -> bool:
        """Whether the API shows a certificate that the operator looks after."""
        return isinstance(self._api, OperatorCertificate)

    def reload(self) -> None:
        """The operator asks for it: SIGHUP."""
        if isinstance(self._api, OperatorCertificate):
            self._api.refresh(always=True)

    async def run(self) -> None:
        """Look from time to time, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.server.refresh()
                if isinstance(self._api, OperatorCertificate):
                    self._api.refresh()
            except OSError as error:
                log.error("a certificate could not be renewed; it is tried again", error=str(error))


def advertised(host: str, report: tuple[str, ...]) -> tuple[str, ...]:
    """By which names others reach a server that listens on a host: what the operator says, or what can be guessed."""
    if report:
        return report
    return (host,) if host not in ANY else (socket.gethostname(), *_outward())


def _outward() -> tuple[str, ...]:
    """The address from which this machine speaks to others: no word is sent to find it out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: a route is looked up, nothing else
            return (probe.getsockname()[0],)
        except OSError:
            return ()


def write_secret(path: Path, text: str) -> None:
    """Leave a file that only its owner can read; a reader meanwhile sees the old or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _open_credentials(pair_now: Callable[[], tuple[bytes, bytes]]) -> grpc.ServerCredentials:
    """TLS without certificates of clients. gRPC asks for each connection whether there is a new pair."""
    shown = pair_now()

    def configuration() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        pair = pair_now()
        if pair == shown:
            return None
        shown = pair
        return grpc.ssl_server_certificate_configuration([pair])

    first = grpc.ssl_server_certificate_configuration([shown])
    return grpc.dynamic_ssl_server_credentials(first, configuration, require_client_authentication=False)


def _read(path: Path) -> Bundle | None:
    try:
        return read_bundle(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _changed(paths: tuple[Path, ...]) -> tuple[tuple[int, int], ...]:
    """What tells one version of some files from the next."""
    try:
        return tuple((found.st_mtime_ns, found.st_ino) for found in map(os.stat, paths))
    except OSError:
        return ()
