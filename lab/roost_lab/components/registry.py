"""A real registry of images on loopback, with one user; and a door before it that lets bytes through slowly."""

import base64
import json
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from roost_lab.components import Missing
from roost_lab.components.docker import EngineServer
from roost_lab.components.etcd import dies_with_us
from roost_lab.components.ports import free_port

USER, PASSWORD = "user", "word"
USERS = f"{USER}:$2y$05$abcdefghijklmnopqrstuuQDoL5Sa/TtfS/XN4AY/jgq.HBbO1BTu\n"
CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}"{relative}}}
auth: {{htpasswd: {{realm: test, path: {folder}/users}}}}
"""
PUSH_S_MAX = 60.0
PIECE = 16 << 10


class Registry:
    def __init__(self) -> None:
        if shutil.which("docker-registry") is None:
            raise Missing("docker-registry has to be installed; `python tools/components.py` installs it")
        self.folder = Path(tempfile.mkdtemp(prefix="roost-registry-"))
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        port = self.address.rpartition(":")[2]
        (self.folder / "users").write_text(USERS)
        (self.folder / "config.yml").write_text(
            CONFIG.format(folder=self.folder, port=port, relative=", relativeurls: true")
        )
        command = [*dies_with_us(), "docker-registry", "serve", str(self.folder / "config.yml")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        return self

    def push(self, engine: EngineServer, image: str, name: str) -> None:
        """Put an image of an engine into this registry as `name`, of which the engine keeps nothing."""
        repository, _, tag = name.rpartition(":")
        engine.client.call("POST", f"/images/{image}/tag?repo={quote(repository, safe='')}&tag={tag}")
        login = base64.urlsafe_b64encode(json.dumps({"username": USER, "password": PASSWORD}).encode()).decode()
        ends = time.monotonic() + PUSH_S_MAX
        while True:
            answer = engine.client.open(
                "POST", f"/images/{repository}/push?tag={tag}", None, {"X-Registry-Auth": login}
            )
            text = answer.whole()
            answer.close()
            if b'"error"' not in text:
                break
            assert time.monotonic() < ends, (text, (self.folder / "log").read_text())
            time.sleep(0.1)
        engine.client.call("DELETE", f"/images/{name}?force=true")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class SlowDoor:
    """Lets so many bytes a second through from the registry, on an address of its own, until `open` is set."""

    def __init__(self, target: str, bytes_per_s: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._rate = bytes_per_s
        self.open = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.open.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._target) as server:
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(PIECE)
                    if not data:
                        return
                    if source is server and not self.open.is_set():
                        self.open.wait(len(data) / self._rate)
                    (client if source is server else server).sendall(data)
