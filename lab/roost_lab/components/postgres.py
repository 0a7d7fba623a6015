"""A real PostgreSQL of our own: a private directory and port, started and stopped by pid."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from roost_lab.components import Missing
from roost_lab.components.ports import free_port

COMMAND_LIMIT_S = 60  # initdb on a busy machine takes some seconds
START_ATTEMPTS = 3  # a port that was free may be taken a moment later

ACCESS = """\
local all all trust
host all guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host all all samenet trust
"""
# Nothing here is meant to survive a power cut, and without fsync everything takes half the time. A server that is
# killed still loses nothing.
SETTINGS = ("fsync=off", "max_connections=100", "max_wal_size=256MB")
LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def running(address: str = LOOPBACK, settings: tuple[str, ...] = SETTINGS) -> Iterator["Postgres"]:
    """An empty server, while the block lasts; on another address of this host for all on that network."""
    directory = Path(tempfile.mkdtemp(prefix="roost-postgres-"))
    server = Postgres(directory, address, settings)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


class Postgres:
    """One server. It refuses to run as root, so under root it runs as the user `postgres`."""

    def __init__(
        self, directory: Path, address: str = LOOPBACK, settings: tuple[str, ...] = SETTINGS
    ) -> None:  # fmt: skip
        self._directory = directory
        self._address = address
        self._settings = (*settings, f"listen_addresses={address}")
        self._data = directory / "data"
        self._as = _user(directory)
        self._programs = _programs()
        self.port = 0

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@{self._address}:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The postmaster's."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def create(self) -> None:
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8")
        (self._data / "pg_hba.conf").write_text(ACCESS)

    def start(self) -> None:
        """On the port it had before, or at first on any that is free."""
        for attempt in range(1, START_ATTEMPTS + 1):
            port = self.port or free_port()
            options = " ".join(f"-c {setting}" for setting in self._settings) + f" -p {port} -k {self._directory}"
            try:
                self._run("pg_ctl", "-D", self._data, "-w", "-l", self._directory / "log", "-o", options, "start")
            except AssertionError:
                if self.port or attempt == START_ATTEMPTS:
                    raise
            else:
                self.port = port
                return

    def stop(self, mode: str = "immediate") -> None:
        """immediate: as if it had crashed. Nothing happens if it does not run."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The server and all its processes do nothing at all, as on a machine that hangs."""
        stopped: list[int] = []
        try:
            # The parent first: it must not start another process while we look.
            for pid in [self.pid, *_children(self.pid)]:
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
            yield
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._as, self._programs / program, *arguments]
        # To a file: the server inherits it, and a pipe would not end before the server does.
        text = self._directory / f"{program}.said"
        with text.open("wb") as output:
            code = subprocess.run(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                timeout=COMMAND_LIMIT_S,
            ).returncode
        assert code == 0, f"{program} failed: {text.read_text()} {_tail(self._directory / 'log')}"


def _programs() -> Path:
    on_path = shutil.which("initdb")
    # The program on the path may be a link to a wrapper; the folder it really lies in has all of them.
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: folder.parent.name, reverse=True)
    for folder in folders:
        if all((folder / program).exists() for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    raise Missing("PostgreSQL is not installed: install the package `postgresql` (initdb, pg_ctl)")


def _user(directory: Path) -> list[str]:
    if os.geteuid() != 0:
        return []
    owner = pwd.getpwnam("postgres")
    os.chown(directory, owner.pw_uid, owner.pw_gid)
    return ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--init-groups"]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2_000:] if log.exists() else ""
