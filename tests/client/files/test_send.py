"""Files reach the server whole, once, and also when it is restarted meanwhile."""

import os
from pathlib import Path

import pytest
from roost_lab.components.ports import free_port

from roost.client import ApiError, Client
from roost.client.errors import CannotSend, Unreachable
from roost.client.files.local import find_local
from roost.client.files.send import Sender
from roost.client.files.upload import PIECE_BYTES
from roost.client.transport import Transport
from tests.cli.serving import Served, serving
from tests.client.files.conftest import shape


class Calls:
    """What is sent, by the last part of its path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[str, int]] = []
        real = Transport.call

        def call(transport, method, path, query=None, body=None, *given):  # type: ignore[no-untyped-def]
            self.found.append((f"{method} {path.rpartition('/')[2]}", len(body or b"")))
            return real(transport, method, path, query, body, *given)

        monkeypatch.setattr(Transport, "call", call)


def test_round_trip(client: Client, tree: Path, tmp_path: Path) -> None:
    sent = client.files.send(tree)
    assert (sent.files, sent.size) == (
        6,
        sum(p.stat().st_size for p in tree.rglob("*") if p.is_file() and not p.is_symlink()),
    )
    client.files.get(sent.digest, tmp_path / "got")
    assert shape(tmp_path / "got") == shape(tree)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_same_files_cost_one_short_question(client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = client.files.send(tree)
    calls = Calls(monkeypatch)
    assert client.files.send(tree) == first
    assert calls.found == [("POST files", 0)]


def test_only_new_contents_are_sent(client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client.files.send(tree)
    (tree / "tool").write_bytes(os.urandom(5_000))
    calls, progress = Calls(monkeypatch), []
    client.files.send(tree, sent=lambda done, total: progress.append((done, total)))
    assert [name for name, _ in calls.found] == ["POST files", "POST missing", "POST pack", "POST files"]
    assert calls.found[2][1] < 6_000
    assert progress == [(5_000, 5_000)]


def test_large_file_is_resumed(client: Client, tree: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int) -> None:
        if done >= PIECE_BYTES:
            raise Interrupted

    only = tree / "large"
    with pytest.raises(Interrupted):
        client.files.send(only, sent=interrupt)
    progress: list[int] = []
    client.files.send(only, sent=lambda done, total: progress.append(done))
    assert progress[0] >= PIECE_BYTES and progress[-1] == 9 << 20


def test_send_survives_a_restart_of_the_server(tmp_path: Path, tree: Path) -> None:
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--agents-listen", f"127.0.0.1:{free_port()}")
    home = tmp_path / "server"
    home.mkdir()
    with serving(home, "server", *listen) as first, first.client() as client:
        progress: list[int] = []
        seconds = []

        def restart(done: int, total: int) -> None:
            progress.append(done)
            if done >= PIECE_BYTES and not seconds:
                first.process.kill()
                first.process.wait()
                seconds.append(serving(home, "server", *listen))
                seconds[0].__enter__()

        try:
            sent = client.files.send(tree, sent=restart)
            assert progress == sorted(progress) and len(seconds) == 1
            client.files.get(sent.digest, tmp_path / "got")
            assert shape(tmp_path / "got") == shape(tree)
        finally:
            for second in seconds:
                second.__exit__(None, None, None)


def test_without_a_server_it_fails_at_once(tree: Path) -> None:
    with pytest.raises(Unreachable):
        Client(f"http://127.0.0.1:{free_port()}").files.send(tree)


@pytest.mark.parametrize("name", ["tool", "large"])
def test_file_that_changes_is_named(client: Client, tree: Path, name: str) -> None:
    found = find_local(tree)
    with (tree / name).open("r+b") as file:
        file.write(os.urandom(100))
    with pytest.raises(CannotSend, match=f"tree/{name}: changed while it was sent"):
        Sender(client._transport, "default").send(found)


def test_file_that_becomes_shorter_is_named(client: Client, tree: Path) -> None:
    found = find_local(tree)
    os.truncate(tree / "large", PIECE_BYTES + 5)
    with pytest.raises(CannotSend, match="tree/large: changed while it was sent"):
        Sender(client._transport, "default").send(found)


def test_file_that_vanishes_is_named(client: Client, tree: Path) -> None:
    found = find_local(tree)
    (tree / "tool").unlink()
    with pytest.raises(CannotSend, match="tool: No such file"):
        Sender(client._transport, "default").send(found)


def test_projects_share_nothing_and_viewers_send_nothing(
    server: Served, client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.files.send(tree / "tool")
    calls = Calls(monkeypatch)
    client.files.send(tree / "tool", "other")
    assert ("POST pack", calls.found[2][1]) == calls.found[2] and calls.found[2][1] > 10_000
    viewer = client.tokens.create("seer", role="viewer", projects=["*"])
    with Client(client.url, viewer.token) as other, pytest.raises(ApiError) as caught:
        other.files.send(tree / "tool")
    assert caught.value.status == 403
