"""roost hooks: set, list, try, remove; and for receivers, verify."""

import http.client
import http.server
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from roost_lab.components.ports import free_port

from roost.cli import root
from roost.model.records.webhook import sign
from tests.cli.conftest import Type
from tests.cli.serving import Served, serving, wait_until

SECRET = "planted-55aa-signing"


class Receiver(http.server.BaseHTTPRequestHandler):
    """Remembers its calls."""

    reported: list[tuple[str, bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.reported.append((self.headers["Roost-Signature"], body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    Receiver.reported.clear()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_set_list_and_remove(typed: Type) -> None:
    assert "there are no hooks" in typed("hooks").stderr
    done = typed(
        "hooks", "set", "web/chat", "--url", "https://h.example/x", "--secret-file", "-", stdin=SECRET.encode()
    )
    assert (
        done.exit_code == 0
        and "hook web/chat is set: instance.ended, workload.finished; messages are signed" in done.stderr
    )
    done = typed("hooks", "set", "nodes", "--url", "https://h.example/n", "--event", "node.*", "--event", "node.lost")
    assert "hook */nodes is set: node.*, node.lost; messages are not signed" in done.stderr
    shown = typed("hooks")
    assert shown.stdout.split()[:3] == ["HOOK", "STATE", "DELIVERED"] and "https://h.example/x" in shown.stdout
    nodes, chat = json.loads(typed("hooks", "--json").stdout)
    assert (nodes["project"], nodes["name"], chat["project"], chat["signed"]) == ("*", "nodes", "web", True)
    assert SECRET not in shown.stdout + json.dumps([nodes, chat])
    result = typed("hooks", "set", "web/chat", "--url", "https://h.example/y", "--json")
    assert json.loads(result.stdout)["signed"] is True
    assert (
        json.loads(typed("hooks", "set", "web/chat", "--url", "https://h.example/y", "--unsigned", "--json").stdout)[
            "signed"
        ]
        is False
    )
    for name in ("web/chat", "nodes"):
        assert "is deleted" in typed("hooks", "remove", name).stderr
    assert typed("hooks", "remove", "nodes").exit_code == 1


def test_what_is_wrong_is_reported(typed: Type, tmp_path: Path) -> None:
    refused = typed("hooks", "set", "web/chat", "--url", "http://127.0.0.1:1/")
    assert refused.exit_code == 2 and "--webhook-allow" in refused.stderr
    refused = typed("hooks", "set", "web/chat", "--url", "https://h.example/", "--event", "failed")
    assert refused.exit_code == 2 and "there is no event 'failed'" in refused.stderr
    assert typed("hooks", "set", "a/b/c", "--url", "https://h.example/").exit_code == 2
    assert typed("hooks", "set", "web/chat").exit_code == 2
    (tmp_path / "key").write_bytes(b"\n")
    refused = typed("hooks", "set", "web/chat", "--url", "https://h.example/", "--secret-file", str(tmp_path / "key"))
    assert refused.exit_code == 2 and "the secret is empty" in refused.stderr
    assert "there are no hooks" in typed("hooks").stderr


def test_verify_says_whether_the_sender_has_the_secret(typed: Type, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET + "\n")
    body, now = b'{"event":"ping"}', int(time.time())
    right = sign(SECRET.encode(), now, body)

    def verify(signature: str, body: bytes) -> tuple[int, str]:
        done = typed("hooks", "verify", "--secret-file", str(key), "--signature", signature, stdin=body)
        return done.exit_code, done.stderr

    assert verify(right, body) == (0, "roost: the signature is right\n")
    assert verify(right, body + b" ")[0] == 1 and "does not match" in verify(right, body + b" ")[1]
    assert "does not match" in verify(sign(b"another-secret", now, body), body)[1]
    assert "301" in verify(sign(SECRET.encode(), now - 3_01, body), body)[1].replace("302", "301")
    for odd in ("", "v1=aa", "t=x,v1=aa", "t=1,v1=\u00e4"):
        assert verify(odd, body)[0] == 1


def test_a_real_server_tells_a_webhook_and_a_command(receiver: str, tmp_path: Path) -> None:
    path = tmp_path / "told"
    (tmp_path / "home").mkdir()
    arguments = (
        "--store",
        "memory",
        "--webhook-allow",
        "127.0.0.1/32",
        "--hook",
        f"note:workload.finished=cat >> {path}",
    )
    with serving(tmp_path / "home", "server", *arguments) as served, served.client() as client:
        wait_until(lambda: [hook.name for hook in client.webhooks.list()] == ["command:note"])
        client.webhooks.set("default", "ends", url=receiver, secret=SECRET)
        assert "took the ping" in served.roost("hooks", "test", "default/ends").stderr.decode()
        assert served.roost("hooks", "test", "command:note").returncode == 0
        client.workloads.submit({"name": "job", "command": "true"})
        client.workloads.cancel("default", "job")
        wait_until(lambda: len(Receiver.reported) == 2)
        signature, body = Receiver.reported[1]
        assert json.loads(body)["key"] == "default/job"
        (tmp_path / "key").write_text(SECRET)
        done = served.roost(
            "hooks", "verify", "--secret-file", str(tmp_path / "key"), "--signature", signature, stdin=body
        )
        assert done.returncode == 0
        wait_until(lambda: path.exists() and len(path.read_text().splitlines()) == 2)
        assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["ping", "workload.finished"]
        client.webhooks.set("default", "dead", url="http://127.0.0.1:1/")
        tried = served.roost("hooks", "test", "default/dead")
        assert tried.returncode == 1 and b"did not take the ping" in tried.stderr
        _is_quiet(served)


def _is_quiet(served: Served) -> None:
    assert SECRET not in served.output() and "Traceback" not in served.output()


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("note", "NAME=COMMAND"),
        ("a b=true", "a name is made of"),
        ("x:failed=true", "no event 'failed'"),
        ("x= ", "NAME=COMMAND"),
    ],
)
def test_a_command_hook_that_cannot_work_is_refused_at_start(hook: str, message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(root, ["server", "--data", str(tmp_path), "--store", "memory", "--hook", hook])
    assert done.exit_code == 2 and message in done.stderr


def test_the_documented_receiver_believes_only_what_is_signed(tmp_path: Path) -> None:
    code = Path("docs/guides/webhooks.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line]) <= 24
    (tmp_path / "key").write_text(SECRET + "\n")
    port = free_port()
    argv = [sys.executable, "-c", code, str(port), str(tmp_path / "key")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(port))
            body, now = json.dumps({"id": "1", "event": "ping", "key": "k", "message": ""}).encode(), int(time.time())
            assert _post(port, body, sign(b"another", now, body)) == 403
            assert _post(port, body, sign(SECRET.encode(), now - 1_000, body)) == 403
            assert [_post(port, body, sign(SECRET.encode(), now, body)) for _ in range(2)] == [204, 204]
        finally:
            process.terminate()
        assert process.stdout is not None and process.stdout.read() == b"ping k \n", "reported twice, noted once"


def _post(port: int, body: bytes, signature: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", "/", body, {"Roost-Signature": signature})
    status = connection.getresponse().status
    connection.close()
    return status


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
