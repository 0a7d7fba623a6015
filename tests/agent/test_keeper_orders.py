"""What the keeper does with orders: repeated, malformed, too many; and what it leaves of a run that is forgotten."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.keeper_stage import DEADLINE_S, Client, Stage, until


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def client(stage: Stage) -> Client:
    stage.keeper()
    return stage.client()


def finish(stage: Stage, client: Client, id: str, script: str = "true") -> None:
    """Run something, forget it, and wait until nothing reminds of it any more."""
    client.send(stage.order(id, script))
    client.ended(id)
    client.send({"do": "forget", "id": id})
    until(
        lambda: not (stage.work / id).exists() and not (stage.work / f"{id}.log").exists(), f"{id} to be cleared away"
    )


def test_a_known_run_is_not_started_again(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "echo once"), stage.order("a", "echo twice"))
    client.ended("a")
    client.send(stage.order("a", "echo later"))
    assert [event["event"] for event in client.others()] == ["started"]
    assert stage.log("a") == b"once\n"


def test_a_forgotten_run_is_not_known_any_more(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "echo once"))
    client.ended("a")
    client.send({"do": "forget", "id": "a"}, {"do": "forget", "id": "a"}, stage.order("a", "echo twice"))
    assert client.ended("a")["log_size"] == 11
    assert stage.log("a") == b"once\ntwice\n"


def test_a_live_run_cannot_be_forgotten_and_an_unknown_one_not_stopped(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "exec sleep 100"), {"do": "forget", "id": "a"}, {"do": "stop", "id": "b"})
    assert client.next("refused", "a")["error"] == "the run has not ended"
    assert client.next("refused", "b")["error"] == "no such run"
    client.send({"do": "stop", "id": "a", "grace_ms": 0})
    assert client.ended("a")["signal"] == 9


BAD = [
    b"",
    b"nonsense",
    b"[]",
    b"7",
    b"\xff\xfe{}",
    b'{"do":"ping"} {}',
    b"[" * 100_000,
    b'{"do":"dance"}',
    b'{"do":["start"]}',
    b'{"do":"start","id":7}',
    b'{"do":"start","id":""}',
    b'{"do":"stop","id":{}}',
    b'{"do":"lease","until":"soon"}',
    b'{"do":"lease","until":true}',
    b'{"do":"lease","until":-1}',
    b'{"do":"shutdown","grace_ms":1e3}',
]
BAD_FIELDS: dict[str, list[object]] = {
    "steps": [
        None,
        [],
        {},
        ["true"],
        [{}],
        [{"argv": []}],
        [{"argv": [""]}],
        [{"argv": ["true", 7]}],
        [{"argv": "true"}],
    ],
    "env": ["A=1", ["A"], {"A": 1}, {"A=": "x"}, {"": "x"}],
    "dir": [None, "", "relative", 7, "/a\0b", "/\ud800"],
    "log": [None, "", "relative", 7, "/\ud800"],
    "timeout_ms": [-1, 1.5, "1s", None, True, 1 << 60],
    "grace_ms": [-1, None],
    "limits": [7, [1], {"cpu_m": -1}, {"memory": "1G"}],
    "note": [7, "x" * ((5 << 18) + 1)],
    "until": ["x", -1],
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: line[:30].decode(errors="replace"))
def test_a_malformed_order_is_refused_and_hurts_nobody(stage: Stage, client: Client, line: bytes) -> None:
    client.raw(line + b"\n")
    assert client.next("refused")["error"]
    client.send(stage.order("a", "exit 4"))
    assert client.ended("a")["code"] == 4


def test_every_field_of_an_order_is_checked(stage: Stage, client: Client) -> None:
    for field, values in BAD_FIELDS.items():
        for value in values:
            client.send(stage.order("a", "true") | {field: value})
            refused = client.next("refused", "a")
            assert refused["do"] == "start"
            named = [field, *value] if isinstance(value, dict) else [field]
            assert any(name in refused["error"] for name in named), (field, value, refused)
    assert stage.client().runs["runs"] == []


def test_a_line_without_end_costs_the_connection_only(stage: Stage, client: Client) -> None:
    client.socket.settimeout(DEADLINE_S)
    with pytest.raises(ConnectionError):
        client.raw(b"x" * (6 << 20))
        client.receive()
    again = stage.client()
    again.send(stage.order("a", "exit 4"))
    assert again.ended("a")["code"] == 4


def test_the_newest_connection_wins(stage: Stage, client: Client) -> None:
    newer = stage.client()
    with pytest.raises(ConnectionError):
        client.next("started")
    newer.send(stage.order("a", "exit 4"))
    assert newer.ended("a")["code"] == 4


def test_there_is_a_limit_to_what_is_known(stage: Stage, client: Client) -> None:
    """Leased runs without a lease end without a process: 8,192 of them take no time."""
    many = [stage.order(f"r{number}", "true", leased=True) for number in range(8_192)]
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 20)
    for start in range(0, len(many), 512):
        client.send(*many[start : start + 512])
        for order in many[start : start + 512]:
            assert client.ended(order["id"])["cause"] == "lease"
    client.send(stage.order("more", "true"))
    assert "forget those that ended" in client.next("refused", "more")["error"]
    client.send({"do": "forget", "id": "r0"}, stage.order("more", "exit 4"))
    assert client.ended("more")["code"] == 4
    assert len(stage.client().runs["runs"]) == 8_192


def test_there_is_a_limit_to_what_is_remembered_with_runs(stage: Stage, client: Client) -> None:
    def order(number: int) -> dict[str, object]:
        return stage.order(f"r{number}", "true", leased=True, note="x" * (1 << 20))

    for number in range(128):
        client.send(order(number))
        client.ended(f"r{number}")
    client.send(order(128))
    assert "notes" in client.next("refused", "r128")["error"]
    client.send({"do": "forget", "id": "r0"}, order(128))
    assert client.ended("r128")["cause"] == "lease"


def test_who_does_not_read_is_dropped_and_told_everything_later(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "true"))
    client.ended("a")
    client.socket.setblocking(False)
    noise = (json.dumps({"do": "stop", "id": "x" * 200}).encode() + b"\n") * 1_000

    def dropped() -> bool:
        try:
            client.socket.send(noise)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return False

    until(dropped, "the keeper to drop us")
    again = stage.client()
    assert [(run["id"], run["ended"]["code"]) for run in again.runs["runs"]] == [("a", 0)]
    assert again.others() == []


def test_what_is_empty_goes_and_what_is_not_stays(stage: Stage, client: Client) -> None:
    finish(stage, client, "empty")
    (stage.work / "given").mkdir()
    client.send(stage.order("full", "echo x; touch y"), stage.order("given", "echo x"), stage.order("link", "true"))
    os.symlink("/dev/null", stage.work / "device.log")
    client.send(stage.order("device", "true"))
    for id in ("full", "given", "link", "device"):
        client.ended(id)
        client.send({"do": "forget", "id": id})
    finish(stage, client, "last")
    until(lambda: not (stage.work / "link").exists(), "the empty directory to go")
    assert sorted(path.name for path in stage.work.iterdir()) == [
        "device.log",
        "full",
        "full.log",
        "given",
        "given.log",
    ]
    assert stage.log("full") == stage.log("given") == b"x\n"
    assert Path("/dev/null").is_char_device()


def test_an_empty_directory_and_log_are_used_again(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "true"))
    client.ended("a")
    made = times(stage, "a")
    client.send({"do": "forget", "id": "a"})
    until(lambda: not (stage.work / "a").exists(), "the directory to be put away")
    client.send(stage.order("b", "true"))
    client.ended("b")
    assert times(stage, "b") == made, "another one was made"
    client.send({"do": "forget", "id": "b"})
    until(lambda: not (stage.work / "b").exists(), "the directory to be put away")
    client.send(stage.order("c", "pwd; ls -A; stat -c %a . $HOME.log; touch new"))
    assert client.ended("c")["code"] == 0
    assert stage.log("c") == f"{stage.work}/c\n700\n600\n".encode()
    client.send({"do": "forget", "id": "c"})
    finish(stage, client, "d")
    assert (stage.work / "c" / "new").exists()


def times(stage: Stage, id: str) -> tuple[int, int]:
    """When directory and log were made: nothing was put into them since."""
    return (stage.work / id).stat().st_mtime_ns, (stage.work / f"{id}.log").stat().st_mtime_ns


def test_what_was_touched_is_not_used_again(stage: Stage, client: Client) -> None:
    """Whoever still has a file open could write into another run's log."""
    holder = "env -i setsid sh -c 'echo $$ >../pid; exec sleep 100' & while [ ! -s ../pid ]; do sleep 0.01; done"
    client.send(stage.order("a", f"touch x; rm x; {holder}"))
    assert client.ended("a")["code"] == 0
    inode = (stage.work / "a.log").stat().st_ino
    client.send({"do": "forget", "id": "a"})
    until(lambda: not (stage.work / "a.log").exists(), "the log to be cleared away")
    client.send(stage.order("b", "true"))
    client.ended("b")
    assert (stage.work / "b.log").stat().st_ino != inode
    assert not list((stage.dir / "spare").iterdir())
    os.kill(
        int((stage.work / "pid").read_text()), signal.SIGKILL
    )  # it hides whose it is, so the keeper leaves it alone


def test_attempts_may_share_a_directory_and_a_log(stage: Stage, client: Client) -> None:
    shared = {"dir": str(stage.work / "shared"), "log": str(stage.work / "shared.log")}
    client.send(stage.order("a", "true", **shared), stage.order("b", "echo $$; exec sleep 100", **shared))
    client.ended("a")
    client.send({"do": "forget", "id": "a"})
    finish(stage, client, "c")
    finish(stage, client, "d")
    assert (stage.work / "shared").is_dir()
    client.send({"do": "stop", "id": "b"})
    assert client.ended("b")["signal"] == 15
