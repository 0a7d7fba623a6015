"""roost doctor: what is wrong is reported with what to do next, and what hangs is not waited for."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from roost import __version__
from roost.cli import root
from roost.cli.common.exit_codes import DONE, FAILED, USAGE
from roost.cli.machines.doctor import command as doctor_command
from roost.cli.machines.doctor.command import DoctorCheck, limited
from roost.ports.store import Change, require
from roost.stores.factory import open_store
from tests.cli.conftest import Type
from tests.cli.serving import Served, serving
from tests.components.seaweedfs import setting_of

NODE = {
    "name": "a", "status": "ready", "connected": True, "draining": False, "lease_until_ms": 1, "joined_ms": 1,
    "pool": "default", "zone": "", "rack": "", "region": "", "arch": "amd64", "drivers": [], "labels": {},
    "resources": {}, "running": 0,
}  # fmt: skip


def now_ms() -> int:
    return int(time.time() * 1_000)


def status(**fields: Any) -> dict[str, Any]:
    return {
        "version": __version__, "revision": 5_000, "ready": True, "now_ms": now_ms(), "strategy": "least_loaded",
        "lease_ms": 4_000, "agents_connected": 1, "nodes": {}, "workloads": {}, "instances": {}, **fields,
    }  # fmt: skip


def server(name: str, **fields: Any) -> dict[str, Any]:
    common = {"role": "standby", "api": "", "agents": "", "revision": 5_000, "now_ms": now_ms(), "version": __version__}
    return {"name": name, **common, **fields}


@contextmanager
def answering(**answers: Callable[[], Any] | Any) -> Iterator[str]:
    """A server whose answers are written by hand, for troubles that a real one does not have at will; its URL."""
    answers = {"livez": {"alive": True}, "status": status, "nodes": {"revision": 1, "items": [NODE]}, **answers}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # an answer is one packet: two would wait for each other

        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0].rpartition("/")[2])
            report = answer() if callable(answer) else answer
            body = (
                report if isinstance(report, bytes) else json.dumps(report or {"code": "x", "message": "no"}).encode()
            )
            self.send_response(200 if report is not None else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.daemon_threads = True
    thread = threading.Thread(target=serving.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}"
    finally:
        serving.shutdown()
        serving.server_close()


def asked(url: str, *message: str) -> Result:
    env = {"ROOST_CONFIG": None, "ROOST_URL": url, "ROOST_TOKEN": "token", "XDG_DATA_HOME": "/nowhere"}
    return CliRunner(env=env).invoke(root, ["doctor", *message], catch_exceptions=False)


def seen(result: Result) -> list[tuple[str, str]]:
    """Everything that is not well."""
    lines = json.loads(result.stdout)["lines"]
    assert all(line["then"] for line in lines if line["level"] != "ok"), "whatever is wrong says what to do"
    return [(line["level"], line["message"]) for line in lines if line["level"] != "ok"]


def reported(**answers: Any) -> list[tuple[str, str]]:
    with answering(**answers) as url:
        return seen(asked(url, "--json"))


# real servers


def test_a_healthy_server_is_all_well_but_for_its_missing_nodes(typed: Type, server: Served) -> None:
    result = typed("doctor", "--json")
    assert result.exit_code == DONE
    assert seen(result) == [("warn", "there are none: nothing can run")]
    about = {line["about"] for line in json.loads(result.stdout)["lines"]}
    assert {"server", "tls", "latency", "clock", "nodes", "disk"} <= about


def test_people_read_lines_with_what_to_do_next(typed: Type) -> None:
    text = typed("doctor").stdout
    assert "ok    server    http://127.0.0.1:" in text
    assert "\n                -> `roost join-tokens create`" in text
    assert text.endswith(" ok, 1 to check, 0 bad\n")


def test_a_blob_store_that_refuses_its_keys_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = setting_of(monkeypatch)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "revoked-4711")
    with serving(tmp_path, "server", "--store", "memory", "--blobs", setting) as served:
        output = served.roost("doctor", "--json").stdout
        (line,) = [line for line in json.loads(output)["lines"] if line["about"] == "blobs"]
    assert line["level"] == "bad" and "S3 refuses the credentials" in line["message"]
    assert b"4711" not in output


def test_a_certificate_tells_how_long_it_is_good(tmp_path: Path) -> None:
    with serving(tmp_path, "server", "--store", "memory", "--tls", "on") as served:
        result = served.roost("doctor", "--json")
        lines = json.loads(result.stdout)["lines"]
    (line,) = [line for line in lines if line["about"] == "tls"]
    assert line["level"] == "ok"
    assert "valid for another 29d23h" in line["message"]


def test_a_server_that_is_gone_is_bad() -> None:
    result = asked("http://127.0.0.1:1", "--json")
    assert result.exit_code == FAILED
    ((level, message),) = seen(result)
    assert level == "bad"
    assert "no server at http://127.0.0.1:1" in message


def test_without_a_configuration_it_says_what_to_do(tmp_path: Path) -> None:
    env = {"ROOST_CONFIG": None, "ROOST_URL": None, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    result = CliRunner(env={**env, "XDG_DATA_HOME": str(tmp_path)}).invoke(root, ["doctor"], catch_exceptions=False)
    assert result.exit_code == FAILED
    assert "no server configured" in result.stdout


# troubles


def test_nothing_is_wrong_where_nothing_is_wrong() -> None:
    assert reported() == []


def test_a_server_that_cannot_decide_is_bad() -> None:
    ((level, message),) = reported(status=lambda: status(ready=False))
    assert level == "bad"
    assert message.endswith("cannot decide")


def test_another_version_is_worth_a_word() -> None:
    assert reported(status=lambda: status(version="9.9")) == [
        ("warn", f"the server is Roost 9.9, this client is {__version__}")
    ]


@pytest.mark.parametrize(("off_ms", "level"), [(30_000, "warn"), (-30_000, "warn"), (3_600_000, "bad")])
def test_a_clock_that_is_off_is_reported(off_ms: int, level: str) -> None:
    ((found, message),) = reported(status=lambda: status(now_ms=now_ms() + off_ms))
    assert found == level
    assert ("ahead of" if off_ms > 0 else "behind") in message


def test_lost_and_suspect_nodes_are_named() -> None:
    nodes = [NODE, {**NODE, "name": "b", "status": "suspect"}]
    nodes += [{**NODE, "name": f"c{number}", "status": "lost", "running": int(number == 3)} for number in range(7)]
    assert reported(nodes={"revision": 1, "items": nodes}) == [
        ("warn", "lost: c0, c1, c2, c3, c4 and 2 more"),
        ("warn", "suspect: b"),
        ("warn", "lost and still holding work: c3"),
    ]


def test_no_ready_node_is_bad() -> None:
    draining = {**NODE, "status": "draining", "draining": True, "drain_until_ms": now_ms() - 60_000, "running": 1}
    assert reported(nodes={"revision": 1, "items": [draining]}) == [
        ("bad", "0 of 1 are ready; 0 instances pending: nothing can start"),
        ("warn", "still working after their drain deadline: a"),
    ]
    ((_, message), _) = reported(
        nodes={"revision": 1, "items": [draining]}, status=lambda: status(instances={"queued": 1})
    )
    assert message == "0 of 1 are ready; 1 instance pending: nothing can start"


def test_a_history_that_cannot_be_written_is_bad() -> None:
    history = {"revision": 3, "at_ms": 1, "failed": "no space"}
    assert reported(status=lambda: status(history=history)) == [("bad", "nothing is written: no space")]


def test_a_history_that_is_lost_with_its_server_is_a_warning() -> None:
    history = {"revision": 3, "at_ms": 1, "is_apart": True}
    found = reported(status=lambda: status(history=history))
    assert found == [("warn", "each server has a history of its own, which is lost with it")]


def test_a_shared_history_that_is_away_is_bad_and_says_what_is_held() -> None:
    history = {"revision": 3, "at_ms": 1, "place": "the store", "waiting": 1_200, "failed": "S3 is away"}
    assert reported(status=lambda: status(history=history)) == [("bad", "nothing is written: S3 is away")]


def test_background_tasks_that_were_restarted_are_named() -> None:
    assert reported(status=lambda: status(task_restarts={"webhooks": 2})) == [("warn", "restarted: webhooks 2 times")]


def test_several_servers_are_judged_one_by_one() -> None:
    timing = {"ttl_ms": 1_500, "renew_ms": 400, "retry_ms": 150, "store_outage_grace_ms": 60_000}
    items = [
        server("one", role="leader"),
        server("two", revision=4_990),
        server("three", revision=10),
        server("four", role="unknown", failed="does not answer: timeout"),
        server("five", version="9.9"),
        server("six", now_ms=now_ms() - 5_000),
        server("seven", api="http://127.0.0.1:1"),
    ]
    found = reported(servers=lambda: {"epoch": 3, "items": items, "timing": timing})
    assert [(level, message[:40]) for level, message in found] == [
        ("warn", "three is standby, 4,990 commits behind"),
        ("bad", "four: does not answer: timeout"),
        ("warn", "five is Roost 9.9, this client is " + __version__),
        ("warn", found[3][1][:40]),  # in milliseconds
        ("warn", "seven cannot be reached from here: no se"),
    ]
    assert found[3][1].startswith("the clock of six is")


@pytest.mark.parametrize("roles", [("standby", "standby"), ("leader", "leader")])
def test_there_is_one_leader(roles: tuple[str, str]) -> None:
    items = [server(f"s{number}", role=role) for number, role in enumerate(roles)]
    ((level, message),) = reported(servers=lambda: {"epoch": 3, "items": items})
    assert (level, message) == ("bad", f"{roles.count('leader')} of 2 servers are leaders")


def test_a_lead_that_is_too_short_for_its_store_is_reported() -> None:
    timing = {"ttl_ms": 1_500, "renew_ms": 400, "retry_ms": 150, "store_outage_grace_ms": 60_000}
    page = b'# TYPE x\nroost_commit_seconds_count 100.0\nroost_commit_seconds_sum 45.0\nother{a="b"} 1.0\n'
    items = [server("one", role="leader"), server("two")]
    assert reported(servers=lambda: {"epoch": 3, "items": items, "timing": timing}, metrics=page) == [
        ("warn", "a commit takes 450.0 ms on average"),
        ("warn", "lasts 1,500 ms, renewed every 400 ms; with commits of 450 ms that is too short"),
    ]


def test_servers_that_share_no_files_are_reported() -> None:
    message = "the servers share a store, but not the files of workloads"
    assert reported(metrics=b"roost_blobs_unshared 1.0\n") == [("warn", message)]
    assert reported(metrics=b"roost_blobs_unshared 0.0\n") == []


def test_a_server_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_command, "LOOK_LIMIT_S", 2.0)
    hanging = threading.Event()
    try:
        with answering(status=hanging.wait) as url:
            result = asked(url, "--json")
    finally:
        hanging.set()
    assert result.exit_code == FAILED
    assert seen(result) == [("bad", "no answer within 2 s")]
    assert "latency" in result.stdout, "what was seen before is reported"


def test_a_look_that_fails_hides_nothing_else() -> None:
    def check() -> Iterator[DoctorCheck]:
        yield DoctorCheck("ok", "one", "fine")
        raise RuntimeError("broken")

    first, second = limited("thing", check, 5)
    assert first == DoctorCheck("ok", "one", "fine")
    assert (second.level, second.message) == ("bad", "the check failed: broken")


# the store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with something in it."""
    put(tmp_path / "data", Change("member", "web/me", b"viewer"))
    return tmp_path / "data"


def put(directory: Path, change: Change) -> None:
    async def work() -> None:
        store = open_store(str(directory))
        epoch = require(await store.lead("test")).epoch
        require(await store.commit(epoch, [change]))
        await store.close()

    asyncio.run(work())


def test_a_store_is_reached_and_read(data: Path) -> None:
    with answering() as url:
        result = asked(url, "--store", str(data))
    assert result.exit_code == DONE
    assert f"SQLite in {data}: reached in" in result.stdout
    assert "sound" in result.stdout


def test_a_store_with_something_wrong_is_bad(data: Path) -> None:
    put(data, Change("toaster", "t", b"1"))
    with answering() as url:
        result = asked(url, "--store", str(data), "--json")
    assert result.exit_code == FAILED
    ((level, message),) = seen(result)
    assert level == "bad"
    assert "toaster t this release knows no such kind" in message


def test_a_store_that_is_not_there_is_bad_and_not_made(tmp_path: Path) -> None:
    with answering() as url:
        assert asked(url, "--store", str(tmp_path / "none")).exit_code == FAILED
        unreachable = asked(url, "--store", "postgresql://me:hush-4711@127.0.0.1:1/none", "--json")
    assert unreachable.exit_code == FAILED
    assert "hush" not in unreachable.output
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_its_server_has_is_fine(tmp_path: Path) -> None:
    with serving(tmp_path, "server") as served:
        result = served.roost("doctor", "--store", str(tmp_path))
    assert result.returncode == DONE
    assert f"led by process {served.process.pid}".encode() in result.stdout


def test_a_wrong_url_is_wrong_usage() -> None:
    assert asked("http://127.0.0.1:1", "--store", "toaster://x").exit_code == USAGE


def test_several_servers_have_headings_and_a_remote_one_no_disk_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "roost").mkdir()
    (tmp_path / "roost" / "admin.token").write_text("x")
    env = {"ROOST_CONFIG": None, "ROOST_TOKEN": "token", "XDG_DATA_HOME": str(tmp_path)}
    with answering() as one, answering() as two:
        result = CliRunner(env={**env, "ROOST_URL": f"{one},{two}"}).invoke(root, ["doctor"])
        assert f"\n{one}:\n" in result.stdout and f"\n{two}:\n" in result.stdout
        assert "\nthis machine:\nok    disk" in result.stdout
        alone = CliRunner(env={**env, "ROOST_URL": one}).invoke(root, ["doctor"])
        assert f"\n{one}:\n" not in alone.stdout and "disk" in alone.stdout
    remote = CliRunner(env={**env, "ROOST_URL": "http://127.0.0.2:1"}).invoke(root, ["doctor"])
    assert "disk" not in remote.stdout
