"""A separate stderr: a second file for the run, opened, counted and cleared away like its log."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roost.keeper.run_table import LOGS_OPEN_MAX
from tests.keeper.keeper_harness import Client, Event, KeeperHarness, until


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[KeeperHarness]:
    harness = KeeperHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture
def client(harness: KeeperHarness) -> Client:
    harness.keeper()
    return harness.client()


def stderr_of(harness: KeeperHarness, id: str) -> Path:
    return harness.work / f"{id}.log.stderr"


def order(harness: KeeperHarness, id: str, *scripts: str, **more: Any) -> Event:
    return harness.order(id, *scripts, stderr=str(stderr_of(harness, id)), **more)


def test_each_stream_has_its_file_and_both_sizes_are_reported(harness: KeeperHarness, client: Client) -> None:
    client.send(order(harness, "a", "echo out; echo error >&2", "echo more >&2; echo more; printf x >&2"))
    ended = client.ended("a")
    assert harness.log("a") == b"out\nmore\n" and stderr_of(harness, "a").read_bytes() == b"error\nmore\nx"
    assert (ended["log_size"], ended["stderr_size"]) == (9, 12)
    assert stderr_of(harness, "a").stat().st_mode & 0o777 == 0o600


def test_without_it_there_is_one_log_in_the_order_of_writing(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "echo 1; echo 2 >&2; echo 3", stderr=""))
    ended = client.ended("a")
    assert harness.log("a") == b"1\n2\n3\n" and "stderr_size" not in ended
    assert sorted(os.listdir(harness.work)) == ["a", "a.log"]


def test_two_empty_logs_are_cleared_away_and_used_again(harness: KeeperHarness, client: Client) -> None:
    client.send(order(harness, "a", "true"))
    assert client.ended("a")["stderr_size"] == 0
    inodes = {(harness.work / "a.log").stat().st_ino, stderr_of(harness, "a").stat().st_ino}
    client.send({"do": "forget", "id": "a"})
    until(lambda: not os.listdir(harness.work), "both logs to be put away")
    client.send(order(harness, "b", "echo x >&2"))
    client.ended("b")
    assert {(harness.work / "b.log").stat().st_ino, stderr_of(harness, "b").stat().st_ino} == inodes
    client.send({"do": "forget", "id": "b"})
    until(lambda: not (harness.work / "b.log").exists(), "the empty one to be cleared away")
    assert stderr_of(harness, "b").read_bytes() == b"x\n"


def test_a_link_in_the_place_of_stderr_is_an_error(harness: KeeperHarness, client: Client) -> None:
    harness.work.mkdir()
    (harness.work / "another").write_text("theirs")
    stderr_of(harness, "a").symlink_to(harness.work / "another")
    client.send(order(harness, "a", "echo mine >&2", "true"))
    ended = client.ended("a")
    assert ended["cause"] == "error" and f"log file {stderr_of(harness, 'a')}" in ended["error"]
    assert (harness.work / "another").read_text() == "theirs"


def test_a_step_after_one_whose_stderr_could_not_be_opened_has_both(harness: KeeperHarness, client: Client) -> None:
    harness.work.mkdir()
    stderr_of(harness, "a").mkdir()
    steps = [
        {"argv": ["/bin/true"], "ignore_failure": True},
        {"argv": ["/bin/sh", "-c", "echo x >&2"], "ignore_failure": True},
    ]
    client.send(order(harness, "a", "true") | {"steps": steps})
    ended = client.ended("a")
    assert "Is a directory" in ended["error"] and ended["codes"] == [127, 127]


def test_the_logs_of_many_runs_are_not_all_held_open(harness: KeeperHarness, client: Client) -> None:
    ids = [str(number) for number in range(LOGS_OPEN_MAX // 2 + 5)]
    client.send(*(order(harness, id, "echo error >&2") for id in ids))
    client.send(order(harness, "last", "echo one >&2", "echo two >&2; echo out"))
    assert {client.ended(id)["stderr_size"] for id in ids} == {6}
    last = client.ended("last")
    assert (last["log_size"], last["stderr_size"]) == (4, 8)
    held = [os.readlink(path) for path in Path(f"/proc/{harness.keepers[0].pid}/fd").iterdir()]
    assert sum(".log" in path for path in held) == LOGS_OPEN_MAX


@pytest.mark.parametrize("value", [5, "relative", "/nul\0", ["/a"]])
def test_a_stderr_that_is_no_path_is_refused(harness: KeeperHarness, client: Client, value: object) -> None:
    client.send(harness.order("a", "true") | {"stderr": value})
    assert client.next("refused", "a")["error"].startswith("stderr has to be")
