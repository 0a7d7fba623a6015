"""The keeper's runs, with real processes: what they are given, how they end, and that ends are reported exactly."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from roost.keeper import run
from roost.keeper.run_table import LOGS_OPEN_MAX
from roost.ports.driver import Refusal
from tests.keeper.keeper_harness import Client, Event, KeeperHarness, alive, until, usage_of

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def facts(ended: dict[str, object], *names: str) -> tuple[object, ...]:
    return tuple(ended[name] for name in names)


@pytest.mark.parametrize("code", [0, 1, 2, 75, 126, 127, 255])
def test_an_exit_code_is_reported_exactly(harness: KeeperHarness, client: Client, code: int) -> None:
    client.send(harness.order("a", f"exit {code}"))
    started, ended = client.next("started"), client.next("ended")
    assert started["id"] == ended["id"] == "a"
    assert started["at"] <= ended["at"]
    assert facts(ended, "cause", "code", "signal", "step", "oom") == ("exited", code, None, 0, False)
    assert client.others() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE])
def test_a_signal_is_reported_exactly(harness: KeeperHarness, client: Client, number: signal.Signals) -> None:
    client.send(harness.order("a", f"kill -{number.value} $$"))
    assert facts(client.ended("a"), "cause", "code", "signal") == ("exited", None, number)


def test_steps_run_in_order_and_tell_where_they_begin(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "echo one; touch here", "echo two; ls", "echo three"))
    steps = [client.next("step", "a") for _ in range(3)]
    assert [(step["step"], step["before"], step["log_offset"]) for step in steps] == [
        (0, None, 0),
        (1, 0, 4),
        (2, 0, 13),
    ]
    assert facts(client.ended("a"), "code", "step", "codes", "log_size") == (0, 2, [0, 0, 0], 19)
    assert harness.log("a") == b"one\ntwo\nhere\nthree\n"
    assert client.next("started")["id"] == "a"
    assert client.others() == []


def test_a_failed_step_ends_the_run_with_its_number_and_code(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "true", "exit 7", "echo never"))
    assert facts(client.ended("a"), "cause", "code", "step", "codes") == ("exited", 7, 1, [0, 7])
    assert harness.log("a") == b""


def test_a_failure_that_is_to_be_ignored_does_not_stop_the_rest(harness: KeeperHarness, client: Client) -> None:
    order = harness.order("a", "exit 7", ["no-such-program"], "echo on", "exit 8")
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
    assert harness.log("a") == b"on\n"


def test_a_run_that_takes_too_long_is_asked_to_end(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "true", "exec sleep 100", timeout_ms=150))
    started, ended = client.next("started"), client.ended("a")
    assert facts(ended, "cause", "signal", "step") == ("timed_out", signal.SIGTERM, 1)
    assert 150 <= ended["at"] - started["at"] < 10_000


def test_what_does_not_listen_is_killed_after_the_grace_with_all_its_descendants(
    harness: KeeperHarness, client: Client
) -> None:
    deaf = "trap '' TERM; echo $$; (trap '' TERM; sh -c 'echo $$; sleep 100; true') & sleep 100; true"
    client.send(harness.order("a", deaf, grace_ms=60_000))
    pids = harness.pids("a", 2)
    client.send({"do": "stop", "id": "a", "grace_ms": 200, "why": "cancelled"})
    asked = time.monotonic()
    ended = client.ended("a")
    assert facts(ended, "cause", "signal", "why") == ("stopped", signal.SIGKILL, "cancelled")
    assert time.monotonic() - asked >= 0.19
    assert [pid for pid in pids if alive(pid)] == []


def test_what_listens_ends_in_its_own_way(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "trap 'echo bye; exit 5' TERM; echo $$; while :; do sleep 0.01; done", "echo never"))
    harness.pids("a", 1)
    client.send({"do": "stop", "id": "a", "grace_ms": 60_000}, {"do": "stop", "id": "a", "grace_ms": 50_000})
    assert facts(client.ended("a"), "cause", "code", "step") == ("stopped", 5, 0)
    assert harness.log("a").endswith(b"\nbye\n")


def test_a_second_stop_can_only_shorten_the_grace(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "trap '' TERM; echo $$; while :; do sleep 1; done"))
    harness.pids("a", 1)
    client.send({"do": "stop", "id": "a", "grace_ms": 60_000}, {"do": "stop", "id": "a", "grace_ms": 0})
    assert facts(client.ended("a"), "cause", "signal") == ("stopped", signal.SIGKILL)


def test_a_stopped_process_hears_that_it_has_to_end(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "echo $$; kill -STOP $$; exit 1", grace_ms=60_000))
    (pid,) = harness.pids("a", 1)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] == "T", "the process to stop")
    client.send({"do": "stop", "id": "a"})
    assert facts(client.ended("a"), "cause", "signal") == ("stopped", signal.SIGTERM)


def test_the_rest_of_the_group_ends_with_its_main_process(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", "sleep 100 & echo $!; (sleep 100 & echo $!; sleep 100) & exit 3"))
    ended = client.ended("a")
    assert ended["code"] == 3
    assert [pid for pid in map(int, harness.log("a").split()) if alive(pid)] == []


def test_a_daemon_that_left_the_group_ends_with_its_run_and_not_before(harness: KeeperHarness, client: Client) -> None:
    daemon = "setsid sh -c 'echo $$ >pid; exec sleep 100' & while [ ! -s pid ]; do sleep 0.01; done; cat pid"
    client.send(harness.order("a", daemon), harness.order("b", f"({daemon}); exec sleep 100"))
    assert client.ended("a")["code"] == 0
    (of_b,) = harness.pids("b", 1)
    (of_a,) = harness.pids("a", 1)
    until(lambda: not alive(of_a), "the daemon of the ended run to end")
    assert alive(of_b)
    client.send({"do": "stop", "id": "b"})
    client.ended("b")
    until(lambda: not alive(of_b), "the other daemon to end")


def test_output_arrives_unchanged(harness: KeeperHarness, client: Client) -> None:
    line = b"x" * 65_531 + b"\n"
    noise = bytes(range(256)) * 8
    (harness.work / "a").mkdir(parents=True)
    (harness.work / "a" / "line").write_bytes(line)
    (harness.work / "a" / "noise").write_bytes(noise)
    client.send(harness.order("a", "cat line noise; cat noise >&2"))
    assert client.ended("a")["log_size"] == len(line) + 2 * len(noise)
    assert harness.log("a") == line + noise + noise


def test_a_run_gets_its_own_environment_and_nothing_of_the_keeper(harness: KeeperHarness) -> None:
    harness.keeper(env={**os.environ, "SECRET_TOKEN": "x"})
    client = harness.client()
    given = {"A": "1", "EMPTY": "", "UMLAUT": "ü\n=", "ROOST_RUN": "forged"}
    client.send(
        harness.order("a", ["env", "-0"], env=given),
        harness.order("b", ["env", "-0"], env={"PATH": "/bin", "HOME": "/"}),
    )
    own = {"PATH": PATH, "HOME": str(harness.work / "a"), "ROOST_KEEPER": str(harness.dir)}
    assert client.ended("a")["code"] == 0
    assert environment(harness, "a") == given | own | {"ROOST_RUN": "a"}
    assert client.ended("b")["code"] == 0
    assert environment(harness, "b") == own | {"PATH": "/bin", "HOME": "/", "ROOST_RUN": "b"}


def environment(harness: KeeperHarness, id: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in harness.log(id).decode().split("\0")[:-1])


def test_a_run_inherits_no_descriptor_and_no_signal_setting(harness: KeeperHarness) -> None:
    read_fd, write_fd = os.pipe()
    hush = lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # noqa: E731
    harness.keeper(pass_fds=(read_fd, write_fd), preexec_fn=hush, stdin=read_fd)
    client = harness.client()
    # A subshell: what the shell opens for `ls` is not among what it inherited.
    script = (
        "cd /proc/$$; readlink fd/0; echo $OLDPWD; (ls fd > $OLDPWD/fds); xargs < $OLDPWD/fds; "
        "grep Sig[BI] ../self/status; cut -d' ' -f6 stat"
    )
    client.send(harness.order("a", script))
    pid = client.next("started")["pid"]
    assert client.ended("a")["code"] == 0
    null, cwd, fds, blocked, ignored, session = harness.log("a").decode().splitlines()
    assert (null, cwd) == ("/dev/null", str(harness.work / "a"))
    assert fds == "0 1 2"
    internal = 1 << 31 | 1 << 32  # 32 and 33 belong to the C library, whose posix_spawn leaves them ignored
    assert int(blocked.split()[1], 16) == int(ignored.split()[1], 16) & ~internal == 0
    assert int(session) == pid


def test_what_cannot_be_started_says_why(harness: KeeperHarness, client: Client) -> None:
    (harness.work).mkdir()
    (harness.work / "plain").write_text("no program")
    (harness.work / "script").write_text("#!/no/such/interpreter\n")
    (harness.work / "script").chmod(0o700)
    cases = {
        "a": ({"scripts": [["/no/such/program", "x"]]}, "/no/such/program: no such program"),
        "b": ({"scripts": [["no-such-program"]]}, "no-such-program: not found in PATH"),
        "c": ({"scripts": [[str(harness.work / "plain")]]}, "plain: not executable"),
        "d": ({"scripts": [[str(harness.work / "script")]]}, "script: no such program (or its interpreter"),
        "e": ({"scripts": [["true"]], "dir": str(harness.work / "plain" / "x")}, "work directory"),
        "f": ({"scripts": [["true"]], "log": str(harness.work)}, "log file"),
        "g": ({"scripts": [["true", "a\0b"]]}, "true: embedded null"),
        "h": ({"scripts": [["true", "x" * 200_000]]}, "true: arguments and environment are too large"),
        "i": ({"scripts": ["true", ["gone"], "true"]}, "gone: not found"),
    }
    for id, (given, message) in cases.items():
        client.send(harness.order(id, *given.pop("scripts"), **given))
        ended = client.ended(id)
        assert facts(ended, "cause", "code", "signal") == ("error", None, None)
        assert message in ended["error"]
    assert facts(ended, "step", "codes") == (1, [0, 127])
    assert [event["event"] for event in client.others()] == ["started", "step"]


def test_two_hundred_runs_at_once_and_none_is_lost(harness: KeeperHarness, client: Client) -> None:
    ids = [f"r{number}" for number in range(200)]
    client.send(*(harness.order(id, f"echo {id}; exit {number % 7}") for number, id in enumerate(ids)))
    codes = {id: client.ended(id)["code"] for id in ids}
    assert codes == {id: number % 7 for number, id in enumerate(ids)}
    assert [harness.log(id) for id in ids] == [f"{id}\n".encode() for id in ids]
    assert sorted(client.next("started")["id"] for _ in ids) == sorted(ids)
    assert client.others() == []


def test_what_was_used_is_reported(harness: KeeperHarness, client: Client) -> None:
    script = "x = bytearray(60 << 20); t = __import__('time'); [0 for _ in iter(lambda: t.process_time() > 0.2, True)]"
    write = "open('x', 'wb').write(bytes(3 << 20))"
    client.send(harness.order("big", ["python3", "-c", f"{script}; {write}"]), harness.order("small", "true"))
    big, small = usage_of(client.ended("big")), usage_of(client.ended("small"))
    assert 200 <= big.cpu_ms < 5_000
    assert 60 << 20 <= big.memory_max < 120 << 20 and not big.memory_is_bound
    assert big.io_written >= 3 << 20 or on_memory(harness.dir)
    assert 1 << 20 < small.memory_max < 60 << 20 and small.memory_is_bound
    assert small.io_written == 0


def test_usage_is_the_sum_over_the_steps_and_the_largest_of_them(harness: KeeperHarness, client: Client) -> None:
    spin = "t = __import__('time'); [0 for _ in iter(lambda: t.process_time() > 0.1, True)]"
    big = ["python3", "-c", f"x = bytearray(60 << 20); {spin}"]
    client.send(harness.order("a", big, ["python3", "-c", spin]))
    usage = usage_of(client.ended("a"))
    assert usage.cpu_ms >= 200 and usage.memory_max >= 60 << 20


def test_a_run_that_never_began_has_no_usage(harness: KeeperHarness, client: Client) -> None:
    client.send(harness.order("a", ["/nowhere"]))
    assert client.ended("a")["usage"] is None


def on_memory(directory: Path) -> bool:
    """Writes to a file system in memory are not counted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [mount for mount in mounts if directory.is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2] == "tmpfs"


def test_the_keeper_knows_the_refusals_of_the_port() -> None:
    assert {run.INVALID, run.CLOSING, run.FULL, run.NO_SUCH_RUN, run.NOT_ENDED} == {*Refusal}


@pytest.mark.parametrize("recycle", ["on", "off"])
def test_what_a_forgotten_run_leaves_empty_goes_with_and_without_recycling(
    harness: KeeperHarness, recycle: str
) -> None:
    harness.keeper("--recycle", recycle)
    client = harness.client()
    client.send(harness.order("a", "true"))
    assert client.ended("a")["code"] == 0
    client.send({"do": "forget", "id": "a"})
    until(lambda: not (harness.work / "a").exists(), "the work directory to go")
    assert (harness.dir / "spare").exists() is (recycle == "on")


def test_a_link_in_the_place_of_a_log_is_not_followed(harness: KeeperHarness, client: Client) -> None:
    harness.work.mkdir(exist_ok=True)
    (harness.work / "another").write_text("another run's output\n")
    os.symlink(harness.work / "another", harness.work / "a.log")
    client.send(harness.order("a", "echo mine"))
    assert "log file" in client.ended("a")["error"]
    assert (harness.work / "another").read_text() == "another run's output\n"


# --- a separate stderr: a second file, opened, counted and cleared away like the log


def stderr_of(harness: KeeperHarness, id: str) -> Path:
    return harness.work / f"{id}.log.stderr"


def separate(harness: KeeperHarness, id: str, *scripts: str, **more: Any) -> Event:
    return harness.order(id, *scripts, stderr=str(stderr_of(harness, id)), **more)


def test_each_stream_has_its_file_and_both_sizes_are_reported(harness: KeeperHarness, client: Client) -> None:
    client.send(separate(harness, "a", "echo out; echo error >&2", "echo more >&2; echo more; printf x >&2"))
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
    client.send(separate(harness, "a", "true"))
    assert client.ended("a")["stderr_size"] == 0
    inodes = {(harness.work / "a.log").stat().st_ino, stderr_of(harness, "a").stat().st_ino}
    client.send({"do": "forget", "id": "a"})
    until(lambda: not os.listdir(harness.work), "both logs to be put away")
    client.send(separate(harness, "b", "echo x >&2"))
    client.ended("b")
    assert {(harness.work / "b.log").stat().st_ino, stderr_of(harness, "b").stat().st_ino} == inodes
    client.send({"do": "forget", "id": "b"})
    until(lambda: not (harness.work / "b.log").exists(), "the empty one to be cleared away")
    assert stderr_of(harness, "b").read_bytes() == b"x\n"


def test_a_link_in_the_place_of_stderr_is_an_error(harness: KeeperHarness, client: Client) -> None:
    harness.work.mkdir()
    (harness.work / "another").write_text("theirs")
    stderr_of(harness, "a").symlink_to(harness.work / "another")
    client.send(separate(harness, "a", "echo mine >&2", "true"))
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
    client.send(separate(harness, "a", "true") | {"steps": steps})
    ended = client.ended("a")
    assert "Is a directory" in ended["error"] and ended["codes"] == [127, 127]


def test_the_logs_of_many_runs_are_not_all_held_open(harness: KeeperHarness, client: Client) -> None:
    ids = [str(number) for number in range(LOGS_OPEN_MAX // 2 + 5)]
    client.send(*(separate(harness, id, "echo error >&2") for id in ids))
    client.send(separate(harness, "last", "echo one >&2", "echo two >&2; echo out"))
    assert {client.ended(id)["stderr_size"] for id in ids} == {6}
    last = client.ended("last")
    assert (last["log_size"], last["stderr_size"]) == (4, 8)
    assert sum(".log" in path for path in open_files(harness.keepers[0].pid)) == LOGS_OPEN_MAX


def open_files(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(path))
    return found


@pytest.mark.parametrize("value", [5, "relative", "/nul\0", ["/a"]])
def test_a_stderr_that_is_no_path_is_refused(harness: KeeperHarness, client: Client, value: object) -> None:
    client.send(harness.order("a", "true") | {"stderr": value})
    assert client.next("refused", "a")["error"].startswith("stderr has to be")
