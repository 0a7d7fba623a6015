"""What the keeper does with orders: repeated, malformed, too many; and what it leaves of a run that is forgotten."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.keeper.keeper_harness import DEADLINE_S, Client, KeeperHarness, alive, until


def finish(harness: KeeperHarness, client: Client, id: str, script: str = "true") -> None:
    """Run something, forget it, and wait until nothing is left of it."""
    client.send(harness.order(id, script))
    client.ended(id)
    client.send({"do": "forget", "id": id})
    until(
        lambda: not (harness.work / id).exists() and not (harness.work / f"{id}.log").exists(),
        f"{id} to be cleared away",
    )


def test_a_known_run_is_not_started_again(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "echo once"), harness.order("a", "echo twice"))
    client.ended("a")
    client.send(harness.order("a", "echo later"))
    assert [event["event"] for event in client.others()] == ["started"]
    assert harness.log("a") == b"once\n"


def test_a_forgotten_run_is_no_longer_known(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "echo once"))
    client.ended("a")
    client.send({"do": "forget", "id": "a"}, {"do": "forget", "id": "a"}, harness.order("a", "echo twice"))
    assert client.ended("a")["log_size"] == 11
    assert harness.log("a") == b"once\ntwice\n"


def test_a_live_run_cannot_be_forgotten_and_an_unknown_one_not_stopped(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "exec sleep 100"), {"do": "forget", "id": "a"}, {"do": "stop", "id": "b"})
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
def test_a_malformed_order_is_refused_and_hurts_no_run(harness: KeeperHarness, client: Client, line: bytes) -> None:
    client.raw(line + b"\n")
    assert client.next("refused")["error"]
    client.send(harness.order("a", "exit 4"))
    assert client.ended("a")["code"] == 4


def test_every_field_of_an_order_is_checked(harness: KeeperHarness, client: Client) -> None:
    for field, values in BAD_FIELDS.items():
        for value in values:
            client.send(harness.order("a", "true") | {field: value})
            refused = client.next("refused", "a")
            assert refused["do"] == "start"
            named = [field, *value] if isinstance(value, dict) else [field]
            assert any(name in refused["error"] for name in named), (field, value, refused)
    assert harness.client().runs["runs"] == []


def test_a_line_without_end_costs_the_connection_only(harness: KeeperHarness, client: Client) -> None:
    client.socket.settimeout(DEADLINE_S)
    with pytest.raises(ConnectionError):
        client.raw(b"x" * (6 << 20))
        client.receive()
    again = harness.client()
    again.send(harness.order("a", "exit 4"))
    assert again.ended("a")["code"] == 4


def test_the_newest_connection_wins(harness: KeeperHarness, client: Client) -> None:
    newer = harness.client()
    with pytest.raises(ConnectionError):
        client.next("started")
    newer.send(harness.order("a", "exit 4"))
    assert newer.ended("a")["code"] == 4


def test_there_is_a_limit_to_what_is_known(harness: KeeperHarness, client: Client) -> None:
    """Leased runs without a lease end without a process: 8,192 of them take no time."""
    many = [harness.order(f"r{number}", "true", leased=True) for number in range(8_192)]
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 20)
    for start in range(0, len(many), 512):
        client.send(*many[start : start + 512])
        for order in many[start : start + 512]:
            assert client.ended(order["id"])["cause"] == "lease"
    client.send(harness.order("more", "true"))
    assert "forget those that ended" in client.next("refused", "more")["error"]
    client.send({"do": "forget", "id": "r0"}, harness.order("more", "exit 4"))
    assert client.ended("more")["code"] == 4
    assert len(harness.client().runs["runs"]) == 8_192


def test_there_is_a_limit_to_what_is_remembered_with_runs(harness: KeeperHarness, client: Client) -> None:
    def order(number: int) -> dict[str, object]:
        return harness.order(f"r{number}", "true", leased=True, note="x" * (1 << 20))

    for number in range(128):
        client.send(order(number))
        client.ended(f"r{number}")
    client.send(order(128))
    assert "notes" in client.next("refused", "r128")["error"]
    client.send({"do": "forget", "id": "r0"}, order(128))
    assert client.ended("r128")["cause"] == "lease"


def test_an_agent_that_does_not_read_is_dropped_and_gets_everything_later(
    harness: KeeperHarness, client: Client
) -> None:
    client.send(harness.order("a", "true"))
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
    again = harness.client()
    assert [(run["id"], run["ended"]["code"]) for run in again.runs["runs"]] == [("a", 0)]
    assert again.others() == []


def test_what_is_empty_goes_and_what_is_not_stays(harness: KeeperHarness, client: Client) -> None:
    finish(harness, client, "empty")
    (harness.work / "given").mkdir()
    client.send(
        harness.order("full", "echo x; touch y"), harness.order("given", "echo x"), harness.order("link", "true")
    )
    client.send(harness.order("device", "true", log="/dev/null"))
    for id in ("full", "given", "link", "device"):
        client.ended(id)
        client.send({"do": "forget", "id": id})
    finish(harness, client, "last")
    until(lambda: not (harness.work / "link").exists(), "the empty directory to go")
    assert sorted(path.name for path in harness.work.iterdir()) == [
        "full",
        "full.log",
        "given",
        "given.log",
    ]
    assert harness.log("full") == harness.log("given") == b"x\n"
    assert Path("/dev/null").is_char_device()


def test_an_empty_directory_and_log_are_used_again(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "true"))
    client.ended("a")
    made = times(harness, "a")
    client.send({"do": "forget", "id": "a"})
    until(lambda: not (harness.work / "a").exists(), "the directory to be put away")
    client.send(harness.order("b", "true"))
    client.ended("b")
    assert times(harness, "b") == made, "another one was made"
    client.send({"do": "forget", "id": "b"})
    until(lambda: not (harness.work / "b").exists(), "the directory to be put away")
    client.send(harness.order("c", "pwd; ls -A; stat -c %a . /dev/fd/1 -L; touch new"))
    assert client.ended("c")["code"] == 0
    assert harness.log("c") == f"{harness.work}/c\n700\n600\n".encode()
    client.send({"do": "forget", "id": "c"})
    finish(harness, client, "d")
    assert (harness.work / "c" / "new").exists()


def times(harness: KeeperHarness, id: str) -> tuple[int, int]:
    """When directory and log were made: nothing was put into them since."""
    return (harness.work / id).stat().st_mtime_ns, (harness.work / f"{id}.log").stat().st_mtime_ns


def test_what_was_touched_is_not_used_again(harness: KeeperHarness, client: Client) -> None:
    """The run that still has a file open could write into another run's log."""
    holder = "env -i setsid sh -c 'echo $$ >../pid; exec sleep 100' & while [ ! -s ../pid ]; do sleep 0.01; done"
    client.send(harness.order("a", f"touch x; rm x; {holder}"))
    assert client.ended("a")["code"] == 0
    inode = (harness.work / "a.log").stat().st_ino
    client.send({"do": "forget", "id": "a"})
    until(lambda: not (harness.work / "a.log").exists(), "the log to be cleared away")
    client.send(harness.order("b", "true"))
    client.ended("b")
    holding = int((harness.work / "pid").read_text())
    if "cleanup" in client.runs["enforces"]:  # nothing holds it now, so the file system may give its number again
        until(lambda: not alive(holding), "the holder to end")
    else:
        assert (harness.work / "b.log").stat().st_ino != inode
        os.kill(holding, signal.SIGKILL)  # it hides whose it is, so the keeper leaves it alone
    assert not list((harness.dir / "spare").iterdir())


def test_attempts_may_share_a_directory_and_a_log(harness: KeeperHarness, client: Client) -> None:
    shared = {"dir": str(harness.work / "shared"), "log": str(harness.work / "shared.log")}
    client.send(harness.order("a", "true", **shared), harness.order("b", "echo $$; exec sleep 100", **shared))
    client.ended("a")
    client.send({"do": "forget", "id": "a"})
    finish(harness, client, "c")
    finish(harness, client, "d")
    assert (harness.work / "shared").is_dir()
    client.send({"do": "stop", "id": "b"})
    assert client.ended("b")["signal"] == 15
