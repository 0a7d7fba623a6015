"""Planted secrets: unmistakable values are set and used, and then looked for everywhere they must not be."""

import base64
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from roost.client import Client
from roost.client.config import read_config
from roost.server.history.database import unpack
from tests.cli.serving import Served, serving, up, wait_until

FIRST = b"PLANTED-first-Zq7xW2mK9vR4tY8u"
SECOND = b"PLANTED-second-\xfe\xff-Lp3nB6cD1fG5hJ0s"
REMOVED = b"PLANTED-removed-Ae8iO2uS4wX6yC1v"
PLANTED = (FIRST, SECOND, REMOVED)
HASH = 'printf %s "$FIRST" | sha256sum; printf %s "$SECOND" | sha256sum'
HASHES = "".join(f"{sha256(value).hexdigest()}  -\n" for value in (FIRST, SECOND)).encode()
ENV = {"FIRST": {"secret": "first"}, "SECOND": {"secret": "second"}}
FILES_BYTES_MAX = 64 << 20  # of one file: what a test of seconds writes is far smaller
STREAM_S = 0.5  # how long to listen to an answer that has no end
ANSWER_S_MAX = 60.0  # against hanging: an answer takes milliseconds on an idle machine
PLACES = {"project": "default", "name": "hashed", "index": "0", "node": "node-1", "pool": "default", "serial": "1",
          "digest": f"sha256:{64 * '0'}"}  # fmt: skip


def forms(value: bytes) -> Iterator[bytes]:
    """How a value may look: as it is, in hexadecimal, in base64 wherever in a larger text it begins, as JSON."""
    yield value
    yield value.hex().encode()
    yield value.hex().upper().encode()
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * before + value)[4 if before else 0 : -4]
    with suppress(UnicodeDecodeError):
        yield json.dumps(value.decode()).encode()[1:-1]


FORMS = [form for value in PLANTED for form in forms(value)]


def found_in(content: bytes) -> list[bytes]:
    return [form for form in FORMS if form in content]


def leaks(home: Path) -> list[str]:
    """Files below a folder that hold a planted value in any form; what is packed in the history is unpacked."""
    found: list[str] = []
    for path in (path for path in home.rglob("*") if path.is_file()):
        assert path.stat().st_size < FILES_BYTES_MAX, path
        if found_in(path.read_bytes()):
            found.append(str(path))
    for path in home.rglob("history.db"):
        found += [f"{path}: {table}" for table, content in packed_of(path) if found_in(content)]
    return found


def packed_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """Every blob of a history, unpacked."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in database.execute(f"SELECT * FROM {table}"):
                for content in row:
                    with suppress(Exception):  # not every blob is packed
                        yield table, unpack(content)
    finally:
        database.close()


def answers(served: Served) -> Iterator[tuple[str, bytes]]:
    """What every GET of the API answers; of streams, what comes within a moment, from the beginning on."""
    config = read_config(served.config)
    headers = {"authorization": f"Bearer {config.token}", "last-event-id": "0"}
    with httpx.Client(base_url=config.url, headers=headers, timeout=ANSWER_S_MAX) as client:
        described = client.get("/schema/openapi.json").json()
        for path in (path for path, operations in described["paths"].items() if "get" in operations):
            filled = re.sub(r"\{(\w+)\}", lambda match: PLACES.get(match[1], "default"), path)
            yield filled, b"".join(pieces(client, filled))


def pieces(client: httpx.Client, path: str) -> Iterator[bytes]:
    with client.stream("GET", path) as answer:
        assert answer.status_code in (200, 404, 409), f"{path}: {answer.status_code}"
        yield str(answer.headers).encode()
        if not answer.headers["content-type"].startswith("text/event-stream"):
            yield answer.read()
            return
        answer.request.extensions["timeout"]["read"] = STREAM_S
        until = time.monotonic() + STREAM_S
        with suppress(httpx.ReadTimeout):
            for piece in answer.iter_raw():
                yield piece
                if time.monotonic() > until:
                    return


def processes(home: Path) -> Iterator[tuple[Path, bytes, bytes]]:
    """Every process that has to do with a folder: its arguments and its environment."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments, environment = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
            if os.fsencode(home) in arguments + environment:
                yield place, arguments, environment


def submit(client: Client, name: str, command: str | list[str] = HASH, **fields: Any) -> tuple[str, str]:
    client.workloads.submit({"name": name, "command": command, "env": ENV, **fields})
    return "default", name


def plant(served: Served) -> None:
    for name, value in (("first", FIRST), ("second", SECOND), ("temporary", REMOVED)):
        done = served.roost("secrets", "set", f"default/{name}", stdin=value)
        assert done.returncode == 0, done.stderr


def use(client: Client, cores: float) -> None:
    """Runs of every kind of ending."""
    every = [
        submit(client, "hashed"),
        submit(client, "silent", "true"),
        submit(client, "failing", "exit 3"),
        submit(client, "retried", f'{HASH}; test "$ROOST_ATTEMPT" = 2', retries={"max": 2, "on": ["failed"]}),
        submit(client, "nowhere", ["there-is-no-such-program"]),
        submit(client, "steps", "", steps=[{"run": HASH}, {"run": "exit 1", "ignore_failure": True}, {"run": HASH}]),
        submit(client, "lined", count=80, resources={"cpu": cores}),
    ]
    client.workloads.wait(every, timeout_s=60)
    assert client.logs.read("default", "hashed") == HASHES
    assert (
        client.logs.read("default", "retried", attempt=1) == client.logs.read("default", "retried", attempt=2) == HASHES
    )
    assert client.logs.read("default", "steps") == HASHES * 2
    states = {name: client.workloads.get("default", name).state for _, name in every}
    assert states == {"hashed": "succeeded", "silent": "succeeded", "failing": "failed", "retried": "succeeded",
                      "nowhere": "failed", "steps": "succeeded", "lined": "succeeded"}  # fmt: skip
    assert all(client.logs.read("default", "lined", index) == HASHES for index in range(80))
    stories = [client.instances.get("default", "lined", index).story for index in range(80)]
    assert any(", behind default/lined" in line.message for story in stories for line in story), "none was prefilled"


def test_planted_values_are_nowhere_but_in_the_processes_that_need_them(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    message = ("--record-decisions", str(home / "record"), "--history", "on", "--log-level", "debug")
    answer: dict[str, bytes] = {}
    with up(home, *message) as served, served.client() as client:
        plant(served)
        cores = client.nodes.list()[0].resources["cpu_milli"].total / 1_000
        use(client, cores)
        go_on = tmp_path / "go-on"
        long = submit(client, "long", f"{HASH}; while ! test -e {go_on}; do sleep 0.05; done; {HASH}")
        gone = submit(client, "gone", resources={"cpu": cores}, env={"GONE": {"secret": "temporary"}})
        client.workloads.wait([long], until="running", timeout_s=30)
        wait_until(lambda: any(FIRST in environment for _, _, environment in processes(home)))
        for place, arguments, environment in processes(home):
            assert not found_in(arguments), place
            assert not found_in(environment) or b"ROOST_RUN=" in environment, place
        assert served.roost("secrets", "remove", "default/temporary").returncode == 0
        answer |= answers(served)
        served.process.kill()  # its nodes live on, and with them what runs
        served.process.wait()
        text = served.output()
        with serving(home, "up", "--agents", "1", *message) as again, again.client() as client:
            wait_until(lambda: client.workloads.get(*long).state == "running")
            go_on.touch()
            client.workloads.wait([long, gone], timeout_s=60)
            assert client.logs.read(*long) == HASHES * 2
            failed = client.instances.get(*gone)
            assert (failed.state, failed.attempt) == ("failed", 1)
            assert failed.message.startswith("secret temporary cannot be opened: it is no longer there"), failed.message
            assert submit(client, "after") and client.workloads.wait([("default", "after")], timeout_s=30)
            assert client.logs.read("default", "after") == HASHES
            answer |= {f"{path} again": content for path, content in answers(again)}
            for name in ("show", "why", "logs"):
                done = again.roost(name, "hashed")
                answer[name] = done.stdout + done.stderr
            shown = again.roost("secrets", "list")
            answer["secrets"] = shown.stdout + shown.stderr
        text += again.output()
    assert b"first" in answer["secrets"] and b'"secret":"first"' in answer["/v1/workloads/default/hashed"]
    assert len(answer) > 50 and any(b"event" in content for path, content in answer.items() if "changes" in path)
    assert {path: found_in(content) for path, content in answer.items() if found_in(content)} == {}
    assert found_in(text.encode()) == []
    assert list((home / "record").glob("*.journal")) and list(home.rglob("history.db")), "there was nothing to look at"
    assert leaks(home) == []
    (home / "planted").write_bytes(b"x" + base64.b64encode(b"xy" + FIRST))
    assert leaks(home) == [str(home / "planted")], "a search would find it"


def test_keys_are_rotated_and_a_lost_one_fails_only_what_needs_it(tmp_path: Path) -> None:
    home, new = tmp_path / "home", tmp_path / "new.key"
    home.mkdir()
    new.write_text(os.urandom(32).hex())
    both = ("--key-file", str(new), "--key-file", str(home / "seal.key"))

    def listed(served: Served) -> bytes:
        return served.roost("secrets", "list").stdout

    with up(home) as served:
        plant(served)
        assert listed(served).count(b" ok") == 3
    with up(home, *both) as served, served.client() as client:
        assert listed(served).count(b"older key") == 3
        client.workloads.wait([submit(client, "one")], timeout_s=30)
        assert client.logs.read("default", "one") == HASHES
    with up(home, "--key-file", str(new)) as served, served.client() as client:
        assert listed(served).count(b"cannot be opened") == 3
        client.workloads.wait([submit(client, "two"), submit(client, "plain", "echo fine", env={})], timeout_s=30)
        assert client.logs.read("default", "plain") == b"fine\n"
        failed = client.instances.get("default", "two")
        assert (failed.state, failed.attempt) == ("failed", 1)
        assert failed.message.startswith("secret first cannot be opened: it was sealed with a key that is not here")
    with up(home, *both) as served:
        assert b"3 secrets were sealed again" in served.roost("secrets", "reseal").stderr
        assert listed(served).count(b" ok") == 3
    with up(home, "--key-file", str(new)) as served, served.client() as client:
        client.workloads.wait([submit(client, "three")], timeout_s=30)
        assert client.logs.read("default", "three") == HASHES
    assert leaks(home) == []
