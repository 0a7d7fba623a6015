"""A server's directory: made on first use, with tokens that only its owner can read, used by one process at a time."""

import fcntl
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.start.options import ListenAddress

if TYPE_CHECKING:
    from roost.server.config import ServerConfig

TOKEN_BYTES = 24  # 192 bits: not to be guessed
CLIENT_CONFIG = "client.toml"


class DataDir:
    """The directory and what is in it. Hold on to it: the lock goes with it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(self.path)
        except OSError as error:
            hint = "choose another one with --data DIR"
            raise Failure(f"{self.path} cannot be used: {error.strerror}", hint) from None
        self.client_config_path = self.path / CLIENT_CONFIG
        # It is written when the server is ready; an old one would point to an old address.
        self.client_config_path.unlink(missing_ok=True)

    def admin_token(self) -> str:
        """Made on first use, kept over restarts."""
        path = self.path / "admin.token"
        token = path.read_text(encoding="ascii").strip() if path.exists() else ""
        if not token:
            token = secrets.token_urlsafe(TOKEN_BYTES)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w", encoding="ascii") as file:
                file.write(token + "\n")
        return token

    def server_config(self, listen: ListenAddress, agents: ListenAddress, **given: Any) -> "ServerConfig":
        """The configuration of a server with this directory; options that were not given have their defaults."""
        from roost.server.config import ServerConfig

        return ServerConfig(
            data=self.path, host=listen.host, port=listen.port, agents_host=agents.host, agents_port=agents.port,
            **{name: value for name, value in given.items() if value not in (None, "")},
        )  # fmt: skip

    def write_client_config(self, config: "ServerConfig", port: int) -> str:
        """Write the client.toml of a server that is ready on this machine. Returns its URL."""
        from roost.client.config import Config, write_config

        address = ListenAddress(config.host, port).reachable()
        # For controllers also where the API is plain. The name is that of server/pki/bootstrap.py, which is too heavy
        # to import here.
        authority = (self.path / "ca.pem").read_text(encoding="ascii") if config.tls_cert is None else ""
        scheme = "https" if config.encrypts(config.host) else "http"
        client = Config(f"{scheme}://{address}", config.admin_token, authority)
        if config.tls_cert is not None:
            host = config.advertise[0] if config.advertise else str(address).rpartition(":")[0]
            client = Config(f"https://{host}:{port}", config.admin_token)
        try:
            write_config(self.client_config_path, client)
        except OSError as error:  # a full disk: the server works without it
            hint = "make room and restart, or set ROOST_URL, ROOST_TOKEN and ROOST_CA for clients"
            click.echo(f"roost: {self.client_config_path} cannot be written: {error.strerror}; {hint}", err=True)
        return client.url


def _lock(path: Path) -> int:
    fd = os.open(path / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(fd, 20).decode().strip() or "unknown"
        os.close(fd)
        hint = f"talk to it with ROOST_CONFIG={path / CLIENT_CONFIG}, or choose another --data DIR"
        raise Failure(f"another server (pid {pid}) uses {path}", hint) from None
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd
