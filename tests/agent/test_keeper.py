"""The keeper's runs, with real processes: what they are given, how they end, and that their ends are told exactly."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.keeper_stage import Client, Stage, alive, until

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def client(stage: Stage) -> Client:
    stage.keeper()
    return stage.client()


def facts(ended: dict[str, object], *names: str) -> tuple[object, ...]:
    return tuple(ended[name] for name in names)


@pytest.mark.parametrize("code", [0, 1, 2, 75, 126, 127, 255])
def test_an_exit_code_is_told_exactly(stage: Stage, client: Client, code: int) -> None:
    client.send(stage.order("a", f"exit {code}"))
    started, ended = client.next("started"), client.next("ended")
    assert started["id"] == ended["id"] == "a"
    assert started["at"] <= ended["at"]
    assert facts(ended, "cause", "code", "signal", "step", "oom") == ("exited", code, None, 0, False)
    assert client.others() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE])
def test_a_signal_is_told_exactly(stage: Stage, client: Client, number: signal.Signals) -> None:
    client.send(stage.order("a", f"kill -{number.value} $$"))
    assert facts(client.ended("a"), "cause", "code", "signal") == ("exited", None, number)


def test_steps_run_in_order_and_tell_where_they_begin(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "echo one; touch here", "echo two; ls", "echo three"))
    steps = [client.next("step", "a") for _ in range(3)]
    assert [(step["step"], step["before"], step["log_offset"]) for step in steps] == [
        (0, None, 0),
        (1, 0, 4),
        (2, 0, 13),
    ]
    assert facts(client.ended("a"), "code", "step", "codes", "log_size") == (0, 2, [0, 0, 0], 19)
    assert stage.log("a") == b"one\ntwo\nhere\nthree\n"
    assert client.next("started")["id"] == "a"
    assert client.others() == []


def test_a_failed_step_ends_the_run_with_its_number_and_code(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "true", "exit 7", "echo never"))
    assert facts(client.ended("a"), "cause", "code", "step", "codes") == ("exited", 7, 1, [0, 7])
    assert stage.log("a") == b""


def test_a_failure_that_is_to_be_ignored_does_not_stop_the_rest(stage: Stage, client: Client) -> None:
    order = stage.order("a", "exit 7", ["no-such-program"], "echo on", "exit 8")
    for step in (0, 1, 3):
        order["steps"][step]["ignore_failure"] = True
    client.send(order)
    assert facts(client.ended("a"), "cause", "code", "signal", "step", "codes") == (
        "exited",
        0,
        None,
        3,
        [7, 127, 0, 8],
    )
    assert stage.log("a") == b"on\n"


def test_a_run_that_takes_too_long_is_asked_to_end(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "true", "exec sleep 100", timeout_ms=150))
    started, ended = client.next("started"), client.ended("a")
    assert facts(ended, "cause", "signal", "step") == ("timed_out", signal.SIGTERM, 1)
    assert 150 <= ended["at"] - started["at"] < 10_000


def test_what_does_not_listen_is_killed_after_the_grace_with_all_its_descendants(stage: Stage, client: Client) -> None:
    deaf = "trap '' TERM; echo $$; (trap '' TERM; sh -c 'echo $$; sleep 100; true') & sleep 100; true"
    client.send(stage.order("a", deaf, grace_ms=60_000))
    pids = stage.pids("a", 2)
    client.send({"do": "stop", "id": "a", "grace_ms": 200, "why": "cancelled"})
    asked = time.monotonic()
    ended = client.ended("a")
    assert facts(ended, "cause", "signal", "why") == ("stopped", signal.SIGKILL, "cancelled")
    assert time.monotonic() - asked >= 0.19
    assert [pid for pid in pids if alive(pid)] == []


def test_what_listens_ends_in_its_own_way(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "trap 'echo bye; exit 5' TERM; echo $$; while :; do sleep 0.01; done", "echo never"))
    stage.pids("a", 1)
    client.send({"do": "stop", "id": "a", "grace_ms": 60_000}, {"do": "stop", "id": "a", "grace_ms": 50_000})
    assert facts(client.ended("a"), "cause", "code", "step") == ("stopped", 5, 0)
    assert stage.log("a").endswith(b"\nbye\n")


def test_a_second_stop_can_only_shorten_the_grace(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "trap '' TERM; echo $$; while :; do sleep 1; done"))
    stage.pids("a", 1)
    client.send({"do": "stop", "id": "a", "grace_ms": 60_000}, {"do": "stop", "id": "a", "grace_ms": 0})
    assert facts(client.ended("a"), "cause", "signal") == ("stopped", signal.SIGKILL)


def test_a_stopped_process_hears_that_it_has_to_end(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "echo $$; kill -STOP $$; exit 1", grace_ms=60_000))
    (pid,) = stage.pids("a", 1)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "T", "the process to stop")
    client.send({"do": "stop", "id": "a"})
    assert facts(client.ended("a"), "cause", "signal") == ("stopped", signal.SIGTERM)


def test_the_rest_of_the_group_ends_with_its_main_process(stage: Stage, client: Client) -> None:
    client.send(stage.order("a", "sleep 100 & echo $!; (sleep 100 & echo $!; sleep 100) & exit 3"))
    ended = client.ended("a")
    assert ended["code"] == 3
    assert [pid for pid in map(int, stage.log("a").split()) if alive(pid)] == []


def test_a_daemon_that_left_the_group_ends_with_its_run_and_not_before(stage: Stage, client: Client) -> None:
    daemon = "setsid sh -c 'echo $$ >pid; exec sleep 100' & while [ ! -s pid ]; do sleep 0.01; done; cat pid"
    client.send(stage.order("a", daemon), stage.order("b", f"({daemon}); exec sleep 100"))
    assert client.ended("a")["code"] == 0
    (of_b,) = stage.pids("b", 1)
    (of_a,) = stage.pids("a", 1)
    until(lambda: not alive(of_a), "the daemon of the ended run to end")
    assert alive(of_b)
    client.send({"do": "stop", "id": "b"})
    client.ended("b")
    until(lambda: not alive(of_b), "the other daemon to end")


def test_output_arrives_unchanged(stage: Stage, client: Client) -> None:
    line = b"x" * 65_531 + b"\n"
    noise = bytes(range(256)) * 8
    (stage.work / "a").mkdir(parents=True)
    (stage.work / "a" / "line").write_bytes(line)
    (stage.work / "a" / "noise").write_bytes(noise)
    client.send(stage.order("a", "cat line noise; cat noise >&2"))
    assert client.ended("a")["log_size"] == len(line) + 2 * len(noise)
    assert stage.log("a") == line + noise + noise


def test_a_run_gets_its_own_environment_and_nothing_of_the_keeper(stage: Stage) -> None:
    stage.keeper(env={**os.environ, "SECRET_TOKEN": "x"})
    client = stage.client()
    given = {"A": "1", "EMPTY": "", "UMLAUT": "ü\n=", "ROOST_RUN": "forged"}
    client.send(
        stage.order("a", ["env", "-0"], env=given), stage.order("b", ["env", "-0"], env={"PATH": "/bin", "HOME": "/"})
    )
    own = {"PATH": PATH, "HOME": str(stage.work / "a"), "ROOST_KEEPER": str(stage.dir)}
    assert client.ended("a")["code"] == 0
    assert environment(stage, "a") == given | own | {"ROOST_RUN": "a"}
    assert client.ended("b")["code"] == 0
    assert environment(stage, "b") == own | {"PATH": "/bin", "HOME": "/", "ROOST_RUN": "b"}


def environment(stage: Stage, id: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in stage.log(id).decode().split("\0")[:-1])


def test_a_run_inherits_no_descriptor_and_no_signal_setting(stage: Stage) -> None:
    read_fd, write_fd = os.pipe()
    hush = lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # noqa: E731
    stage.keeper(pass_fds=(read_fd, write_fd), preexec_fn=hush, stdin=read_fd)
    client = stage.client()
    script = "cd /proc/$$; readlink fd/0; echo $OLDPWD; ls fd | xargs; grep Sig[BI] ../self/status; cut -d' ' -f6 stat"
    client.send(stage.order("a", script))
    pid = client.next("started")["pid"]
    assert client.ended("a")["code"] == 0
    null, cwd, fds, blocked, ignored, session = stage.log("a").decode().splitlines()
    assert (null, cwd) == ("/dev/null", str(stage.work / "a"))
    assert fds == "0 1 2"
    internal = 1 << 31 | 1 << 32  # 32 and 33 belong to the C library, whose posix_spawn leaves them ignored
    assert int(blocked.split()[1], 16) == int(ignored.split()[1], 16) & ~internal == 0
    assert int(session) == pid


def test_what_cannot_be_started_says_why(stage: Stage, client: Client) -> None:
    (stage.work).mkdir()
    (stage.work / "plain").write_text("no program")
    (stage.work / "script").write_text("#!/no/such/interpreter\n")
    (stage.work / "script").chmod(0o700)
    cases = {
        "a": ({"scripts": [["/no/such/program", "x"]]}, "/no/such/program: no such program"),
        "b": ({"scripts": [["no-such-program"]]}, "no-such-program: not found in PATH"),
        "c": ({"scripts": [[str(stage.work / "plain")]]}, "plain: not executable"),
        "d": ({"scripts": [[str(stage.work / "script")]]}, "script: no such program (or its interpreter"),
        "e": ({"scripts": [["true"]], "dir": str(stage.work / "plain" / "x")}, "work directory"),
        "f": ({"scripts": [["true"]], "log": str(stage.work)}, "log file"),
        "g": ({"scripts": [["true", "a\0b"]]}, "true: embedded null"),
        "h": ({"scripts": [["true", "x" * 200_000]]}, "true: arguments and environment are too large"),
        "i": ({"scripts": ["true", ["gone"], "true"]}, "gone: not found"),
    }
    for id, (given, words) in cases.items():
        client.send(stage.order(id, *given.pop("scripts"), **given))
        ended = client.ended(id)
        assert facts(ended, "cause", "code", "signal") == ("error", None, None)
        assert words in ended["error"]
    assert facts(ended, "step", "codes") == (1, [0, 127])
    assert [event["event"] for event in client.others()] == ["started", "step"]


def test_two_hundred_runs_at_once_and_none_is_lost(stage: Stage, client: Client) -> None:
    ids = [f"r{number}" for number in range(200)]
    client.send(*(stage.order(id, f"echo {id}; exit {number % 7}") for number, id in enumerate(ids)))
    codes = {id: client.ended(id)["code"] for id in ids}
    assert codes == {id: number % 7 for number, id in enumerate(ids)}
    assert [stage.log(id) for id in ids] == [f"{id}\n".encode() for id in ids]
    assert sorted(client.next("started")["id"] for _ in ids) == sorted(ids)
    assert client.others() == []


def test_what_was_used_is_told(stage: Stage, client: Client) -> None:
    script = "x = bytearray(60 << 20); t = __import__('time'); [0 for _ in iter(lambda: t.process_time() > 0.2, True)]"
    client.send(stage.order("big", ["python3", "-c", script]), stage.order("small", "true"))
    big, small = client.ended("big"), client.ended("small")
    assert 200 <= big["cpu_ms"] < 5_000
    assert 60 << 20 <= big["rss_max"] < 120 << 20
    assert small["rss_max"] == 0
