"""A real container engine of our own: a dockerd, or Podman's service, with private directories and socket.

It has no network of its own, so it changes nothing of this machine's; containers have the machine's network or none.
Its only image is `bb:1`, made of busybox.
"""

import io
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import quote

from roost.keeper.containers.engine import EngineAway, EngineClient, EngineRefused
from roost_lab.components import Missing
from roost_lab.components.etcd import dies_with_us

IMAGE = "bb:1"
TRIES = 3
START_S = 60.0  # half a second on a machine at rest
PROGRAMS = {"docker": "dockerd", "podman": "podman"}
PODMAN_CONF = """[containers]
default_ulimits = ["nofile=1024:4096","nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
REGISTRIES_CONF = """[[registry]]
location = "127.0.0.1"
insecure = true
"""  # with any port, as Docker does it


class EngineServer:
    """`kind`: docker or podman. `kill` and `start` again: as an engine that crashed."""

    def __init__(self, kind: str = "docker", *, flags: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self._program = engine_program(kind)
        self._flags = flags
        self.folder = Path(tempfile.mkdtemp(prefix="roost-engine-"))
        self.socket = str(self.folder / "engine.sock")
        self.client = EngineClient(self.socket, 60.0)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        for _ in range(TRIES):  # dockerd gives its own containerd 15 s to start, which a busy machine may exceed
            if self._started():
                return self
        text = (self.folder / "engine.log").read_text(errors="replace")
        raise AssertionError(f"{self.kind} did not start: {text[-2_000:]}")

    def _started(self) -> bool:
        (self.folder / "dockerd.pid").unlink(missing_ok=True)
        environment = dict(os.environ)
        if self.kind == "podman":
            (self.folder / "containers.conf").write_text(PODMAN_CONF)
            environment["CONTAINERS_CONF"] = str(self.folder / "containers.conf")
            (self.folder / "registries.conf").write_text(REGISTRIES_CONF)
            environment["CONTAINERS_REGISTRIES_CONF"] = str(self.folder / "registries.conf")
        with (self.folder / "engine.log").open("ab") as log:
            command = [*dies_with_us(), *self._command()]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        ends = time.monotonic() + START_S
        while not self.answers():
            if time.monotonic() > ends or self._process.poll() is not None:
                self.kill()
                return False
            time.sleep(0.05)
        return True

    def _command(self) -> list[str]:
        at = self.folder
        if self.kind == "podman":
            place = [f"--root={at / 'data'}", f"--runroot={at / 'run'}", "--storage-driver=overlay"]
            return [self._program, *place, *self._flags, "system", "service", "--time=0", f"unix://{self.socket}"]
        return [
            self._program, f"--data-root={at / 'data'}", f"--exec-root={at / 'run'}", f"--host=unix://{self.socket}",
            f"--pidfile={at / 'dockerd.pid'}", "--bridge=none", "--iptables=false", "--ip6tables=false", *self._flags,
        ]  # fmt: skip

    def answers(self) -> bool:
        with suppress(EngineAway, EngineRefused):
            self.client.call("GET", "/version")
            return True
        return False

    def import_image(self, name: str = f"docker.io/library/{IMAGE}", more: bytes = b"") -> None:
        """`more`: the content of a file, which makes the image so much larger."""
        repository, _, tag = name.rpartition(":")
        named = quote(repository, safe="")
        put(self.socket, f"/images/create?fromSrc=-&repo={named}&tag={tag}", busybox_tar(more))
        if self.kind == "podman":  # it gives every import the tag `latest`
            self.client.call("POST", f"/images/{repository}:latest/tag?repo={named}&tag={tag}")

    def containers(self) -> list[dict[str, Any]]:
        """All, also those that have ended."""
        return cast(list[dict[str, Any]], self.client.call("GET", "/containers/json?all=true") or [])

    def remove_all(self) -> None:
        for container in self.containers():
            with suppress(EngineRefused):
                self.client.call("DELETE", f"/containers/{container['Id']}?force=true&v=true")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it, what it ran, and all that it has written."""
        if self._process is not None and self._process.poll() is None:
            with suppress(EngineAway, EngineRefused):
                self.remove_all()
            self._process.terminate()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()
        for mount in reversed([line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]):
            if mount.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        self.import_image()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def engine_program(kind: str) -> str:
    program = shutil.which(PROGRAMS[kind], path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None or shutil.which("busybox") is None or os.geteuid() != 0:
        missing = f"{PROGRAMS[kind]} and busybox have to be installed, and the user has to be root"
        raise Missing(f"{missing}; `python tools/components.py` installs them")
    return program


def busybox_tar(more: bytes = b"") -> bytes:
    """A root file system: busybox, a link for each of its programs, and a directory to write to."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for folder, mode in (("bin", 0o755), ("tmp", 0o1777), ("etc", 0o755)):
            item = tarfile.TarInfo(folder)
            item.type, item.mode = tarfile.DIRTYPE, mode
            tar.addfile(item)
        tar.add(busybox, "bin/busybox")
        if more:
            item = tarfile.TarInfo("more")
            item.size = len(more)
            tar.addfile(item, io.BytesIO(more))
        for name in names:
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
    return data.getvalue()


def put(path: str, target: str, data: bytes) -> None:
    """Send bytes to an engine, which no call of the product does."""
    from roost.keeper.containers.engine import EngineAnswer, connect

    sock = connect(path, 60.0)
    head = (
        f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-tar\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    sock.sendall(head.encode() + data)
    answer = EngineAnswer(sock)
    text = answer.whole()
    answer.close()
    assert answer.status < 300 and b'"error"' not in text, text[:500]
