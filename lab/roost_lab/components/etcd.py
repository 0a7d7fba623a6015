"""A real etcd cluster of our own: private ports and directories, members that can be killed and started again."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

from roost_lab.components import Missing
from roost_lab.components.ports import free_ports

START_S = 30.0  # three members on a busy machine need 3 s
MEMBERS = 3
MEMORY_FREE_MIN = 4 << 30  # a member takes 64 MiB at once for its log, and some tests write a lot


class Cluster:
    """Members listen on 127.0.0.1. `flags` go to every member; `tls`: a folder with ca.pem, server.pem, server.key.

    Their data is in memory, unless the disk is what matters.
    """

    def __init__(
        self, *, flags: tuple[str, ...] = (), tls: Path | None = None, members: int = MEMBERS, in_memory: bool = True
    ) -> None:
        self._program = etcd_program()
        self._flags, self._tls = flags, tls
        self._folder = Path(tempfile.mkdtemp(prefix="roost-etcd-", dir=memory_folder() if in_memory else None))
        ports = free_ports(2 * members)
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:members]]
        self._peers = [f"127.0.0.1:{port}" for port in ports[members:]]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> Self:
        for number in range(len(self.endpoints)):
            self.start_member(number)
        try:
            for number in range(len(self.endpoints)):
                self.wait_for(number)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for number in list(self._processes):
            self.kill(number)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self, number: int) -> None:
        """kill -9, and its ports are free again."""
        process = self._processes.pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def start_member(self, number: int) -> None:
        """Start it, or start it again with what it had."""
        scheme = "http" if self._tls is None else "https"
        everybody = ",".join(f"n{other_peer}=http://{peer}" for other_peer, peer in enumerate(self._peers))
        command = [
            *dies_with_us(),
            self._program,
            *(f"--name=n{number}", f"--data-dir={self._folder / str(number)}"),
            f"--listen-client-urls={scheme}://{self.endpoints[number]}",
            f"--advertise-client-urls={scheme}://{self.endpoints[number]}",
            f"--listen-peer-urls=http://{self._peers[number]}",
            f"--initial-advertise-peer-urls=http://{self._peers[number]}",
            f"--initial-cluster={everybody}",
            f"--initial-cluster-token={self._folder.name}",
            *self._flags,
        ]
        if self._tls is not None:
            command += [f"--trusted-ca-file={self._tls / 'ca.pem'}", "--client-cert-auth"]
            command += [f"--cert-file={self._tls / 'server.pem'}", f"--key-file={self._tls / 'server.key'}"]
        with (self._folder / f"{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_for(self, number: int) -> None:
        """Until it answers that it is healthy, which it is when the cluster has a leader."""
        ends = time.monotonic() + START_S
        while subprocess.run(self._ctl(number, "endpoint", "health"), capture_output=True, env=v3()).returncode != 0:
            if time.monotonic() > ends or self._processes[number].poll() is not None:
                raise AssertionError(f"etcd {number} did not start: {self.log(number)[-2_000:]}")
            time.sleep(0.05)

    def log(self, number: int) -> str:
        return (self._folder / f"{number}.log").read_text(errors="replace")

    def _ctl(self, number: int, *message: str) -> list[str]:
        command = ["etcdctl", f"--endpoints={self.endpoints[number]}", *message]
        if self._tls is not None:
            command += [f"--cacert={self._tls / 'ca.pem'}"]
            command += [f"--cert={self._tls / 'client.pem'}", f"--key={self._tls / 'client.key'}"]
        return command


def etcd_program() -> str:
    program = shutil.which("etcd")
    if program is not None and shutil.which("etcdctl") is not None:
        return program
    raise Missing("etcd and etcdctl are not installed; `python tools/components.py` installs them as root")


def memory_folder() -> str | None:
    """In memory where there is room."""
    folder = "/dev/shm"
    roomy = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= MEMORY_FREE_MIN
    return folder if roomy else None


def dies_with_us() -> list[str]:
    """A run that is killed leaves no server behind."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def v3() -> dict[str, str]:
    return {**os.environ, "ETCDCTL_API": "3"}
