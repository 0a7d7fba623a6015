"""`roost exec` and `roost port-forward` as they are typed: exit codes, streams, and a real terminal."""

import os
import pty
import select
import signal
import socket
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from roost.client import Client
from roost.client.errors import ApiError
from roost.model.tunnels import FrameKind
from roost.server.http.tunnels import REVOKED
from tests.cli.serving import DEADLINE_S, ROOST, Served, up, wait_until
from tests.e2e.test_exec import everything

SERVICE = "python3 -u -m http.server --bind 127.0.0.1 $PORT_HTTP"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up")) as served, served.client() as client:
        for name, count in (("single", 1), ("array", 2)):
            document = {"name": name, "count": count, "command": "sleep 600", "resources": {"cpu": 0.1}}
            client.workloads.submit(document)
        web = {"name": "web", "kind": "service", "command": SERVICE, "ports": {"http": 0}, "resources": {"cpu": 0.1}}
        client.workloads.submit(web)
        for name in ("single", "array", "web"):
            client.workloads.wait([("default", name)], until="started", timeout_s=DEADLINE_S)
        yield served


class Terminal:
    """`roost exec -t` on a terminal of its own."""

    def __init__(self, served: Served, *arguments: str) -> None:
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [*ROOST, *arguments], env=served.env | {"TERM": "vt100"}, stdin=self.slave, stdout=self.slave,
            stderr=self.slave, start_new_session=True,
        )  # fmt: skip
        self.seen = b""

    def until(self, text: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def test_streams_and_exit_codes(one: Served) -> None:
    done = one.roost("exec", "-i", "single", "--", "sh", "-c", "cat; echo wrong >&2; exit 3", stdin=b"\0\xffgiven")
    assert (done.stdout, done.stderr, done.returncode) == (b"\0\xffgiven", b"wrong\n", 3)
    assert one.roost("exec", "single", "--", "sh", "-c", "cat; kill -TERM $$").returncode == 128 + 15
    done = one.roost("exec", "single", "--", "no-such")
    assert (done.returncode, done.stdout) == (127, b"") and done.stderr.startswith(b"roost: no-such: ")


def test_what_is_asked_wrongly_says_what_to_do(one: Served) -> None:
    done = one.roost("exec", "array", "--", "true")
    assert (done.returncode, done.stderr) == (2, b"roost: several instances run: array.0, array.1; name one of them\n")
    assert one.roost("exec", "array.1", "--", "true").returncode == 0
    assert one.roost("exec", "-t", "single", "--", "true").returncode == 2
    assert one.roost("exec", "none", "--", "true").returncode == 1
    done = one.roost("port-forward", "web", "0:metrics")
    assert done.returncode == 2 and b"has the ports http (" in done.stderr


def test_a_terminal_is_raw_meanwhile_and_as_before_in_the_end(one: Served) -> None:
    with Terminal(one, "exec", "-t", "single", "--", "sh") as terminal:
        os.write(terminal.master, b"echo $TERM-$((40 + 2)); stty size\r")
        terminal.until(b"vt100-42")
        assert not terminal.is_as_before()
        termios.tcsetwinsize(terminal.slave, (41, 97))
        terminal.process.send_signal(signal.SIGWINCH)
        os.write(terminal.master, b"until [ \"$(stty size)\" = '41 97' ]; do sleep 0.1; done; echo re''sized; exit 5\r")
        terminal.until(b"resized")
        assert terminal.process.wait(DEADLINE_S) == 5
        assert terminal.is_as_before()


def test_a_terminal_is_put_back_when_a_signal_ends_the_client(one: Served) -> None:
    with Terminal(one, "exec", "-t", "single", "--", "sh") as terminal:
        os.write(terminal.master, b"echo be''gun\r")
        terminal.until(b"begun")
        terminal.process.terminate()
        assert terminal.process.wait(DEADLINE_S) == 128 + 15
        assert terminal.is_as_before()


def test_ports_are_forwarded(one: Served) -> None:
    process = subprocess.Popen(
        [*ROOST, "port-forward", "web", "0:http"], env=one.env, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.endswith(" is http of web\n"), line
        port = int(line.split()[1].rpartition(":")[2])

        def answer() -> bytes:
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                found = b""
                while data := connection.recv(4096):
                    found += data
                return found

        wait_until(lambda: b"200 OK" in answer())
        assert b"Directory listing" in answer()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130


def test_commands_are_in_the_audit_log_without_secrets(one: Served) -> None:
    with one.client() as client:
        client.secrets.set_value("default", "password", b"hunter2!")
        env = {"PASSWORD": {"secret": "password"}}
        document = {"name": "secretive", "command": "sleep 600", "env": env, "resources": {"cpu": 0.1}}
        client.workloads.submit(document)
        client.workloads.wait([("default", "secretive")], until="started", timeout_s=DEADLINE_S)
        one.roost("exec", "secretive", "--", "echo", "hunter2!")

        def details() -> list[str]:
            return [item.detail for item in client.audit.list() if item.target == "default/secretive.0"]

        wait_until(lambda: len(details()) == 2)
        ended, begun = details()
        assert begun == "command echo '***'"
        assert ended.startswith("command echo '***': exit code 0 after ") and ended.endswith("9 bytes out")


def test_a_terminal_is_put_back_when_the_server_is_killed(one: Served) -> None:
    """The last test: it ends the server."""
    with Terminal(one, "exec", "-t", "single", "--", "sh") as terminal:
        os.write(terminal.master, b"echo be''gun\r")
        terminal.until(b"begun")
        one.process.kill()
        assert terminal.process.wait(DEADLINE_S) == 255
        assert terminal.is_as_before()
        terminal.until(b"the connection to the server broke")


def test_commands_and_refusals_go_through_tls(tmp_path: Path) -> None:
    with up(tmp_path, "--tls", "on") as served, served.client() as client:
        client.workloads.submit({"name": "job", "command": "sleep 600"})
        client.workloads.wait([("default", "job")], until="started", timeout_s=DEADLINE_S)
        data = os.urandom(1 << 20)
        done = served.roost("exec", "-i", "job", "--", "cat", stdin=data)
        assert (done.stdout == data, done.returncode) == (True, 0), done.stderr
        with pytest.raises(ApiError) as refused:
            client._transport.web_socket("/v1/tunnels/none")
        assert refused.value.status == 404
        viewer = client.tokens.create("look", role="viewer", projects=["default"]).token
        with Client(client.url, viewer, client._transport._ca) as other, pytest.raises(ApiError) as refused:
            other.tunnels.exec("default", "job", ["true"])
        assert (refused.value.status, refused.value.code) == (403, "forbidden")
        submitter = client.tokens.create("work", role="submitter", projects=["default"]).token
        with Client(client.url, submitter, client._transport._ca) as other:
            tunnel = other.tunnels.exec("default", "job", ["sh", "-c", "echo on; exec sleep 600"])
            assert tunnel.read() == (FrameKind.OUTPUT, b"on\n")
            client.tokens.delete("work")
            assert everything(tunnel)[2] == REVOKED
        with Client(client.url, "wrong", client._transport._ca) as other, pytest.raises(ApiError) as refused:
            other._transport.web_socket("/v1/tunnels/none")
        assert refused.value.status == 401
