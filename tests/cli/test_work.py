"""Work on one real node, as users see it: output, exit codes, signals, logs, waiting."""

import json
import shlex
import signal
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.client import Client
from tests.cli.serving import DEADLINE_S, ROOST, Served, up, wait_until


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up")) as served:
        yield served


@pytest.fixture
def client(one: Served) -> Iterator[Client]:
    with one.client() as client:
        yield client


def started(one: Served, *message: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*ROOST, *message], env=one.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_output_and_success(one: Served) -> None:
    done = one.roost("run", "--", "echo", "hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\n", b"")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (("--", "sh", "-c", "exit 7"), 7),
        (("--", "sh", "-c", "kill -9 $$"), 137),
        (("--", "sh", "-c", "kill -TERM $$"), 143),
        (("--timeout", "500ms", "--", "sleep", "60"), 124),
        (("--", "no-such-program-anywhere"), 1),
        (("--cpu", "1000", "--queue-timeout", "300ms", "--", "true"), 1),
        (("--", "sh", "-c", "exit 255"), 255),
    ],
)
def test_exit_codes(one: Served, message: tuple[str, ...], code: int) -> None:
    assert one.roost("run", *message).returncode == code


def test_output_is_untouched(one: Served) -> None:
    line = b"x" * 65_531
    script = r"printf '\377\000\r\n'; head -c 65531 /dev/zero | tr '\0' x; printf 'no end' >&2"
    done = one.roost("run", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\xff\x00\r\n" + line, b"no end")


BOTH = "echo 1; echo 2 >&2; echo 3; echo 4 >&2"


def shell(one: Served, line: str) -> "subprocess.CompletedProcess[bytes]":
    """A line as a user types it, with `roost` as the command."""
    script = f'roost() {{ {shlex.join(ROOST)} "$@"; }}; {line}'
    return subprocess.run(["/bin/sh", "-c", script], env=one.env, capture_output=True, timeout=DEADLINE_S)


def test_stdout_can_be_piped_and_stderr_thrown_away(one: Served) -> None:
    done = shell(one, "roost run --name piped -- sh -c 'echo out; echo err >&2' 2>/dev/null | cat")
    assert (done.stdout, done.stderr) == (b"out\n", b"")
    again = one.roost("logs", "piped")
    assert (again.stdout, again.stderr) == (b"out\n", b"err\n")
    assert one.roost("logs", "-f", "piped").stderr == b"err\n"
    only = [one.roost("logs", *more, "piped", "--stream", "stderr") for more in ((), ("-f",))]
    assert [(done.stdout, done.stderr) for done in only] == [(b"", b"err\n")] * 2
    assert one.roost("logs", "piped", "--stream", "stdout").stderr == b""


def test_one_file_for_both_is_one_log_in_the_order_of_writing(one: Served) -> None:
    assert shell(one, f"roost run -- sh -c '{BOTH}' 2>&1").stdout == b"1\n2\n3\n4\n"
    merged = shell(one, f"roost run --stderr merge --name merged -- sh -c '{BOTH}'")
    assert (merged.stdout, merged.stderr) == (b"1\n2\n3\n4\n", b"")
    done = one.roost("logs", "merged", "--stream", "stderr")
    assert done.stdout == b"" and b"merged.0 has one log for stdout and stderr" in done.stderr


def test_a_closed_stderr_is_not_sent_to_stdout(one: Served) -> None:
    assert shell(one, "roost run -- sh -c 'echo out; echo err >&2' 2>&-").stdout == b"out\n"
    assert shell(one, "roost run -- sh -c 'echo out; echo err >&2' >&-").stderr == b"err\n"


def test_a_reader_of_stderr_that_closes_ends_the_run(one: Served, client: Client) -> None:
    line = "exec 3>&1; { roost run --name noisy -- sh -c 'yes >&2'; echo $? >&3; } 2>&1 >/dev/null | head -n 1"
    assert shell(one, line).stdout == b"y\n141\n"
    assert [item.state for item in client.workloads.wait([("default", "noisy")], timeout_s=DEADLINE_S)] == ["cancelled"]


def test_what_is_not_attached_is_merged_unless_asked(one: Served, client: Client) -> None:
    assert one.roost("run", "-d", "--name", "left", "--", "sh", "-c", BOTH).returncode == 0
    assert one.roost("run", "-d", "--name", "apart", "--stderr", "separate", "--", "sh", "-c", BOTH).returncode == 0
    client.workloads.wait([("default", "left"), ("default", "apart")], timeout_s=DEADLINE_S)
    assert client.logs.read("default", "left") == b"1\n2\n3\n4\n"
    assert client.logs.read("default", "apart") == b"1\n3\n"
    assert client.logs.read("default", "apart", stream="stderr") == b"2\n4\n"
    events = [json.loads(line) for line in one.roost("run", "--json", "--", "sh", "-c", BOTH).stdout.splitlines()]
    pieces = [(event["stream"], b64decode(event["data"])) for event in events if event["event"] == "output"]
    assert {stream for stream, _ in pieces} == {"stdout"} and b"".join(data for _, data in pieces) == b"1\n2\n3\n4\n"


def test_lines_of_several_instances_keep_their_stream(one: Served) -> None:
    script = "echo out $ROOST_INDEX; echo err $ROOST_INDEX >&2"
    done = one.roost("run", "--name", "two", "--count", "2", "--cpu", "100m", "--", "sh", "-c", script)
    assert sorted(done.stdout.splitlines()) == [b"two.0 | out 0", b"two.1 | out 1"]
    assert sorted(done.stderr.splitlines()) == [b"two.0 | err 0", b"two.1 | err 1"]
    again = one.roost("logs", "two")
    assert again.stdout == b"==> two.0 <==\nout 0\n==> two.1 <==\nout 1\n"
    assert again.stderr == b"==> two.0 <==\nerr 0\n==> two.1 <==\nerr 1\n"


def test_arguments_and_variables_arrive_as_they_are(one: Served) -> None:
    done = one.roost(
        "run", "-e", "GREETING=a b", "--", "sh", "-c", 'printf "%s|" "$GREETING" "$@"', "sh", "", "a  b", "*"
    )
    assert done.stdout == b"a b||a  b|*|"


def test_what_has_no_place_says_why_while_it_waits(one: Served) -> None:
    done = one.roost("run", "--cpu", "1000", "--queue-timeout", "2s", "--", "true")
    assert done.returncode == 1
    assert b"needs 1000 cpu" in done.stderr
    assert b"expired" in done.stderr
    detached = one.roost("run", "-d", "--name", "huge", "--cpu", "1000", "--", "true")
    assert (detached.returncode, detached.stdout) == (4, b"huge\n")
    assert one.roost("why", "huge", "--json").returncode == 0
    assert json.loads(one.roost("why", "huge", "--json").stdout)["code"] == "unsatisfiable"
    assert one.roost("cancel", "huge").returncode == 0


def test_several_instances_side_by_side(one: Served) -> None:
    done = one.roost(
        "run", "--name", "many", "--count", "3", "--cpu", "100m", "--", "sh", "-c", "echo I am $ROOST_INDEX"
    )
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [b"many.0 | I am 0", b"many.1 | I am 1", b"many.2 | I am 2"]
    one_by_one = one.roost("logs", "many").stdout
    assert one_by_one == b"".join(b"==> many.%d <==\nI am %d\n" % (index, index) for index in range(3))
    assert one.roost("logs", "many.1").stdout == b"I am 1\n"


def test_the_first_instance_that_fails_gives_the_exit_code(one: Served) -> None:
    done = one.roost("run", "--count", "3", "--cpu", "100m", "--", "sh", "-c", 'exit "$ROOST_INDEX"')
    assert done.returncode == 1


def test_events_as_json(one: Served) -> None:
    done = one.roost("run", "--json", "--name", "told", "--", "sh", "-c", "echo hi; exit 3")
    assert done.returncode == 3
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events if event["event"] != "attempt"] == ["submitted", "output", "end"]
    assert (events[-1]["state"], events[-1]["exit_code"]) == ("failed", 3)


def test_ctrl_c_cancels_and_waits(one: Served, client: Client) -> None:
    run = started(one, "run", "--name", "stopped", "--", "sleep", "60")
    wait_until(lambda: [workload.state for workload in client.workloads.list(name="stopped")] == ["running"])
    run.send_signal(signal.SIGINT)
    assert run.wait(DEADLINE_S) == 130
    assert client.workloads.get("default", "stopped").state == "cancelled"


def test_ctrl_c_twice_leaves(one: Served, client: Client) -> None:
    stubborn = "trap '' TERM; echo ready; while true; do sleep 0.1; done"
    run = started(one, "run", "--name", "stubborn", "--grace", "3s", "--", "sh", "-c", stubborn)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    run.send_signal(signal.SIGINT)
    wait_until(lambda: client.workloads.get("default", "stubborn").state == "stopping")
    run.send_signal(signal.SIGINT)
    assert run.wait(5) == 130
    assert client.workloads.get("default", "stubborn").state == "stopping"
    assert [workload.state for workload in client.workloads.wait([("default", "stubborn")], timeout_s=DEADLINE_S)] == [
        "cancelled"
    ]


def test_the_reader_has_gone(one: Served, client: Client) -> None:
    run = started(one, "run", "--name", "yes", "--", "yes")
    assert run.stdout is not None
    assert run.stdout.read(4) == b"y\ny\n"
    run.stdout.close()
    assert run.wait(DEADLINE_S) == 141
    assert client.workloads.wait([("default", "yes")], timeout_s=DEADLINE_S)[0].state == "cancelled"
    # More than a pipe takes: with less, the log is written before the reader has gone.
    assert one.roost("run", "--name", "many", "--", "sh", "-c", "yes | head -c 1000000").returncode == 0
    logs = started(one, "logs", "many")
    assert logs.stdout is not None
    assert logs.stdout.read(4) == b"y\ny\n"
    logs.stdout.close()
    assert logs.wait(DEADLINE_S) == 141


def test_the_life_of_a_job(one: Served, client: Client) -> None:
    """It fails, is looked at from all sides, is retried, and succeeds."""
    script = 'echo attempt $ROOST_ATTEMPT; test "$ROOST_ATTEMPT" -gt 1'
    assert one.roost("run", "-d", "--name", "flaky", "--", "sh", "-c", script).returncode == 0
    waited = one.roost("wait", "flaky", "--timeout", "20s")
    assert waited.returncode == 1
    assert b"flaky is failed" in waited.stderr
    shown = one.roost("show", "flaky").stdout.decode()
    for word in ("failed", "node-1", "exit code 1", "placed", "running"):
        assert word in shown
    assert one.roost("retry", "flaky").returncode == 0
    assert one.roost("wait", "flaky", "--timeout", "20s").returncode == 0
    assert one.roost("logs", "flaky").stdout == b"attempt 2\n"
    assert one.roost("logs", "flaky", "--attempt", "1").stdout == b"attempt 1\n"
    assert "least_loaded chose node-1" in one.roost("why", "flaky").stdout.decode()
    assert [load["name"] for load in json.loads(one.roost("ps", "--state", "succeeded", "--json").stdout)].count(
        "flaky"
    )


def test_logs_are_followed_to_the_end(one: Served, client: Client) -> None:
    assert one.roost("run", "-d", "--name", "slow", "--", "sh", "-c", "echo begin; sleep 1; echo end").returncode == 0
    done = one.roost("logs", "-f", "slow")
    assert (done.returncode, done.stdout) == (0, b"begin\nend\n")


def test_a_service_runs_until_it_is_cancelled(one: Served, client: Client) -> None:
    document = b"name: web\nkind: service\nresources: {cpu: 100m}\ncommand: while true; do date; sleep 0.2; done\n"
    assert b"created" in one.roost("apply", "-f", "-", stdin=document).stdout
    assert one.roost("wait", "web", "--for", "running", "--timeout", "20s").returncode == 0
    assert b"unchanged" in one.roost("apply", "-f", "-", stdin=document).stdout
    assert one.roost("wait", "web", "--timeout", "200ms").returncode == 124
    assert one.roost("cancel", "web").returncode == 0
    assert one.roost("wait", "web", "--timeout", "20s").returncode == 1
    assert client.workloads.get("default", "web").state == "cancelled"


def test_a_node_is_shown_drained_and_put_back(one: Served, client: Client) -> None:
    assert one.roost("run", "-d", "--name", "held", "--cpu", "500m", "--", "sleep", "60").returncode == 0
    client.workloads.wait([("default", "held")], "running", DEADLINE_S)
    shown = one.roost("nodes", "show", "node-1").stdout.decode()
    for message in ("Status:    ready", "0.5 of ", "%)", "memory", "held.0", "Measured "):
        assert message in shown, shown
    assert one.roost("nodes", "remove", "node-1").returncode == 1
    assert b"draining" in one.roost("drain", "node-1", "--deadline", "10m", "--no-wait").stderr
    assert json.loads(one.roost("nodes", "--json").stdout)[0]["status"] == "draining"
    waiting = one.roost("run", "-d", "--name", "behind", "--", "true")
    assert waiting.returncode == 4
    assert b"ready" in one.roost("uncordon", "node-1").stderr
    assert one.roost("wait", "behind", "--timeout", "20s").returncode == 0
    assert one.roost("cancel", "held").returncode == 0
    assert one.roost("wait", "held", "--timeout", "20s").returncode == 1


def test_the_client_runs_to_the_end_and_reads_the_log(client: Client) -> None:
    done = client.workloads.run_to_end({"name": "api", "command": "echo from the client"}, timeout_s=DEADLINE_S)
    assert (done.state, client.logs.read("default", "api")) == ("succeeded", b"from the client\n")
    assert [line.state for line in client.instances.get("default", "api").story][-1] == "succeeded"


def test_completion_knows_nodes(one: Served) -> None:
    env = {**one.env, "_ROOST_COMPLETE": "bash_complete", "COMP_WORDS": "roost drain no", "COMP_CWORD": "2"}
    assert subprocess.run(ROOST, env=env, capture_output=True, text=True).stdout == "plain,node-1\n"


def test_a_local_script_that_is_not_sent_is_named_when_the_node_does_not_have_it(one: Served, tmp_path: Path) -> None:
    script = tmp_path / "slurm.sh"
    script.write_text("#!/bin/sh\necho hello\n")
    done = subprocess.run(
        [*ROOST, "run", "--no-send", "slurm.sh"], env=one.env, cwd=tmp_path, capture_output=True, text=True,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "slurm.sh is a file of this machine, which was not sent: name it with --send" in done.stderr
    assert "a file of this machine" not in one.roost("run", "--", "no-such-program").stderr.decode()


def test_a_command_that_asks_for_a_whole_core_says_how_to_ask_for_less(one: Served, client: Client) -> None:
    (node,) = client.nodes.list()
    most = f"{node.resources['cpu_milli'].total - 500}m"
    assert one.roost("run", "-d", "--name", "filling", "--cpu", most, "--", "sleep", "300").returncode == 0
    try:
        done = one.roost("run", "-d", "--name", "whole", "--", "true")
        assert done.returncode == 4
        assert "without --cpu it asks for one whole core; `--cpu 0.1` asks for less" in done.stderr.decode()
        assert "`roost why whole`" in done.stderr.decode()
        asked = one.roost("run", "-d", "--name", "asked", "--cpu", "1", "--", "true")
        assert "without --cpu" not in asked.stderr.decode()
    finally:
        one.roost("cancel", "filling", "whole", "asked")


def test_commands_of_several_lines_are_indented(one: Served) -> None:
    assert one.roost("run", "--name", "lines", "--cpu", "0.1", "--", "sh", "-c", "true\ntrue \x1b[2J").returncode == 0
    shown = one.roost("show", "lines").stdout.decode()
    assert "Command:    sh -c 'true\n            true \\x1b[2J'\n" in shown
