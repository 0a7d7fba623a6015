"""TLS of the server: mTLS for agents and servers, TLS for the API; certificates are renewed while it runs."""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

from roost.model.errors import Invalid
from roost.model.records.enrolment import Bundle, read_bundle
from roost.server.config import CERTIFICATE_MS
from roost.server.observability import logging
from roost.server.pki.authority import Authority, now_ms
from roost.server.private_files import readable_by_others, replacing

FILE = "server.pem"  # in the data directory: certificate and key of this server, for its next start
LOOK_S = 1.0  # how often to check for certificates to renew, or that were revoked or replaced: some microseconds
ALWAYS = ("localhost", "127.0.0.1", "::1")
ANY = frozenset({"", "*", "0.0.0.0", "::"})

log = logging.logger("transport")


class Certificate:
    """A key and a certificate that are shown to clients, and replaced in place."""

    def __init__(self) -> None:
        self.context = _context()
        self.pair = (b"", b"")  # key and certificate

    def grpc_credentials(self, authority: str = "") -> grpc.ServerCredentials:
        """TLS for gRPC; a renewed pair is used at once. With `authority`, clients need a certificate of that CA."""
        shown, roots = self.pair, authority.encode() or None

        def configuration() -> grpc.ServerCertificateConfiguration | None:
            """gRPC calls this for every new connection, on a thread of its own; None: unchanged."""
            nonlocal shown
            pair = self.pair
            if pair == shown:
                return None
            shown = pair
            return grpc.ssl_server_certificate_configuration([pair], roots)

        first = grpc.ssl_server_certificate_configuration([shown], roots)
        return grpc.dynamic_ssl_server_credentials(first, configuration, require_client_authentication=bool(roots))


class ServerCertificate(Certificate):
    """This server's certificate of our CA, kept in a file, so that a restarted server issues nothing."""

    def __init__(
        self, authority: Authority, name: str, hosts: tuple[str, ...], data: Path, life_ms: int = CERTIFICATE_MS,
        series: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self._series = series
        self._authority, self._name, self._life_ms = authority, name, life_ms
        self._hosts = tuple(dict.fromkeys((*hosts, *ALWAYS)))
        self.path = data / FILE
        stored = _read(self.path)
        self.bundle = self._show(stored if stored is not None and self._is_good(stored) else self._issue())

    def refresh(self) -> None:
        if not self._is_good(self.bundle):
            self.bundle = self._show(self._issue())
            log.info(
                "the server's certificate was renewed", expires_ms=self.bundle.expires_ms, series=self.bundle.series
            )

    def _is_good(self, bundle: Bundle) -> bool:
        return (
            bundle.authority == self._authority.certificate
            and bundle.name == self._name
            and set(self._hosts) <= set(bundle.hosts)
            and bundle.series == self._series()
            and now_ms() < bundle.renew_ms
        )

    def _issue(self) -> Bundle:
        bundle = self._authority.for_server(self._name, self._hosts, self._life_ms, self._series())
        with replacing(self.path) as file:
            file.write(bundle.text().encode("ascii"))
        return bundle

    def _show(self, bundle: Bundle) -> Bundle:
        self.context.load_cert_chain(self.path)
        self.pair = (bundle.key.encode(), bundle.certificate.encode())
        return bundle


class OperatorCertificate(Certificate):
    """The operator's own certificate for the API: files that are read again when they change."""

    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__()
        self._paths = (certificate, key)
        self._seen = _changed(self._paths)
        try:
            self._show()
        except (OSError, ssl.SSLError) as error:
            raise Invalid("tls_cert", f"{certificate} with {key} cannot be used: {error}") from None

    def refresh(self, *, always: bool = False) -> None:
        """Read the files again if they have changed. If they cannot be used, that is logged and the old ones stay."""
        seen = _changed(self._paths)
        if seen == self._seen and not always:
            return
        self._seen = seen
        try:
            _context().load_cert_chain(*self._paths)  # half of a new pair must not spoil the one in use
            self._show()
            log.info("the API's certificate was read again")
        except (OSError, ssl.SSLError) as error:
            log.error("the API's new certificate cannot be used; the old one stays", error=str(error))

    def _show(self) -> None:
        certificate, key = self._paths
        if warning := readable_by_others(key):
            log.warning("the API's key is not private", file=str(key), warning=warning)
        self.context.load_cert_chain(certificate, key)
        self.pair = (key.read_bytes(), certificate.read_bytes())


class ServerTls:
    """The certificates that are shown to clients, kept up to date."""

    def __init__(self, server: ServerCertificate, api: Certificate) -> None:
        self.server = server  # for agents and other servers
        self.api = api  # for clients and controllers
        self.operators = api if isinstance(api, OperatorCertificate) else None
        self.renewed: Callable[[], Awaitable[None]] | None = None  # to leave connections that show a former certificate

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            before = self.server.bundle
            try:
                self.server.refresh()
                if self.operators is not None:
                    self.operators.refresh()
            except OSError as error:
                log.error("a certificate could not be renewed; it is tried again", error=str(error))
            if self.renewed is not None and self.server.bundle is not before:
                await self.renewed()


def advertised(host: str, report: tuple[str, ...]) -> tuple[str, ...]:
    """The names by which others reach a server: those of the operator, or a guess."""
    if report:
        return report
    return (host,) if host not in ANY else (socket.gethostname(), *_outward())


def _outward() -> tuple[str, ...]:
    """The address of this machine on its default route. Nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: a route is looked up, nothing else
            return (probe.getsockname()[0],)
        except OSError:
            return ()


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _read(path: Path) -> Bundle | None:
    try:
        return read_bundle(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _changed(paths: tuple[Path, ...]) -> tuple[tuple[int, int], ...]:
    """Differs between two versions of some files."""
    try:
        return tuple((found.st_mtime_ns, found.st_ino) for found in map(os.stat, paths))
    except OSError:
        return ()
