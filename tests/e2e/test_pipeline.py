"""Pipelines on real nodes: what is streamed, how runs end, and what becomes of actions whose node dies under them."""

import json
import os
import pty
import signal
import subprocess
from binascii import a2b_base64
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from roost_lab.bench.product import Product

from roost.client import Client
from tests.cli.conftest import typed as typed_for
from tests.cli.serving import DEADLINE_S, ROOST, Served, up, wait_until
from tests.e2e.test_agents import kill_node

LOST_S_MAX = 60.0  # a node is given up after some seconds; a busy machine takes longer for the rest
SMALL = "resources: {cpu: 100m}"
HOLD = "echo begin $0; while [ ! -e {0}/go ]; do sleep 0.05; done; echo end"

Write = Callable[[str], str]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up"), agents=2) as served:
        yield served


@pytest.fixture
def client(one: Served) -> Iterator[Client]:
    with one.client() as client:
        yield client


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        (tmp_path / "pipeline.yaml").write_text(text)
        return str(tmp_path / "pipeline.yaml")

    return write


def started(env: dict[str, str], *message: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*ROOST, "ci", *message], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def states(client: Client, pipeline: str) -> dict[str, str]:
    """The state of each action of the newest run."""
    return {
        workload.labels["action"]: workload.state for workload in client.workloads.list(label=f"pipeline={pipeline}")
    }


# --- what is streamed -------------------------------------------------------------------------------------------------


def test_lines_come_behind_their_action_and_bytes_as_they_are(one: Served, write: Write) -> None:
    text = rf"""
name: bytes
env: {{WHO: world}}
actions:
  - name: odd
    {SMALL}
    steps: ["printf '\\377\\000\\r\\n'; head -c 65531 /dev/zero | tr '\\0' x", "printf '\\nno end'"]
  - {{name: greeting, needs: [odd], {SMALL}, steps: ["echo hello $WHO", "echo $ROOST_WORKLOAD >&2"], env: {{CI: "1"}}}}
  - {{name: all, needs: [greeting], each: [a, b], {SMALL}, steps: ["echo $ROOST_VALUE"]}}
"""
    done = one.roost("ci", "run", write(text), "--var", "WHO=all")
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.split(b"\n")
    assert lines[:4] == [
        b"odd      | \xff\x00\r",
        b"odd      | " + b"x" * 65_531,
        b"odd      | no end",
        b"greeting | hello all",
    ]
    assert lines[4].startswith(b"greeting | bytes-") and lines[4].endswith(b"-greeting")
    assert sorted(lines[5:7]) == [b"all.0    | a", b"all.1    | b"]
    assert lines[7:] == [b""]
    answer = done.stderr.decode().splitlines()
    assert answer[0].startswith("roost: /") and " of this machine is sent; " in answer[0]
    assert answer[1].startswith("roost: run bytes-") and answer[1].endswith(": 3 actions")
    assert any(line.startswith("roost: odd succeeded on node-") for line in answer)
    assert any(line.startswith("roost: all (2 elements) succeeded in ") for line in answer)
    assert [line.split()[:2] for line in answer[-4:-1]] == [
        ["ACTION", "STATE"],
        ["odd", "succeeded"],
        ["greeting", "succeeded"],
    ]


def test_the_first_failure_gives_the_code_and_what_needs_it_never_runs(
    one: Served, client: Client, write: Write
) -> None:
    text = f"""
name: broken
actions:
  - {{name: build, {SMALL}, steps: [echo built]}}
  - {{name: test, needs: [build], {SMALL}, steps: ["exit 7", echo no]}}
  - {{name: deploy, needs: [test], {SMALL}, steps: [echo no]}}
  - {{name: tell, needs: {{test: finished}}, {SMALL}, steps: [echo reported]}}
"""
    done = one.roost("ci", "run", write(text))
    assert done.returncode == 7
    assert done.stdout == b"build  | built\ntell   | reported\n"
    assert states(client, "broken") == {
        "build": "succeeded", "test": "failed", "deploy": "cancelled", "tell": "succeeded",
    }  # fmt: skip
    rows = [line.split()[:4] for line in done.stderr.decode().splitlines()[-4:]]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("build", "succeeded", "0"),
        ("test", "failed", "7"),
        ("deploy", "cancelled", "-"),
        ("tell", "succeeded", "0"),
    ]


def test_what_failed_is_retried_and_the_rest_stays(one: Served, client: Client, write: Write, tmp_path: Path) -> None:
    text = f"""
name: flaky
actions:
  - {{name: build, {SMALL}, steps: [echo built]}}
  - {{name: test, needs: [build], {SMALL}, steps: ["echo try $ROOST_ATTEMPT; test -e {tmp_path}/fixed"]}}
  - {{name: deploy, needs: [test], {SMALL}, steps: [echo deployed]}}
"""
    assert one.roost("ci", "run", write(text)).returncode == 1
    run = json.loads(one.roost("ci", "list", "flaky", "--json").stdout)[0]["run"]
    assert one.roost("wait", f"ci:{run}").returncode == 1
    (tmp_path / "fixed").touch()
    again = one.roost("ci", "retry", run)
    assert again.returncode == 0, again.stderr.decode()
    assert again.stdout == b"test   | try 2\ndeploy | deployed\n"
    assert [instance.attempt for instance in client.instances.list("default", f"flaky-{run}-build")] == [1]
    assert one.roost("wait", f"ci:{run}").returncode == 0
    shown = json.loads(one.roost("ci", "show", run, "--json").stdout)
    assert (shown["state"], [action["exit_code"] for action in shown["actions"]]) == ("succeeded", [0, 0, 0])


def test_everything_as_json(one: Served, write: Write) -> None:
    text = f"name: reported\nactions: [{{name: a, {SMALL}, steps: ['printf \"\\\\377\"; exit 3']}}]"
    done = one.roost("ci", "run", write(text), "--json")
    assert (done.returncode, done.stderr) == (3, b"")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events if event["event"] != "state"] == [
        "submitted", "output", "end", "finished",
    ]  # fmt: skip
    output = next(event for event in events if event["event"] == "output")
    assert (output["action"], a2b_base64(output["data"])) == ("a", b"\xff")
    assert (events[-1]["exit_code"], events[-1]["actions"][0]["state"]) == (3, "failed")


def test_colour_is_for_terminals(one: Served, write: Write) -> None:
    file = write(f"name: paint\nactions: [{{name: a, {SMALL}, steps: [echo hi]}}]")
    master, slave = pty.openpty()
    env = {name: value for name, value in one.env.items() if name != "NO_COLOR"}
    run = subprocess.Popen([*ROOST, "ci", "run", file], env=env, stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    assert run.wait(DEADLINE_S) == 0
    assert os.read(master, 1_000) == b"\x1b[36ma |\x1b[0m hi\r\n"
    os.close(master)
    assert one.roost("ci", "run", file).stdout == b"a | hi\n"


def test_more_logs_than_streams(one: Served, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.cli.ci.follow.LOGS_MAX", 1)
    item = [str(number) for number in range(12)]
    file = write(f"name: many\nactions: [{{name: a, {SMALL}, each: {json.dumps(item)}, steps: [echo $ROOST_VALUE]}}]")
    done = typed_for.__wrapped__(one)("ci", "run", file)  # type: ignore[attr-defined]
    assert done.exit_code == 0, done.output
    assert sorted(done.stdout.splitlines()) == sorted(f"{f'a.{number}':4} | {number}" for number in range(12))


# --- the client that watches leaves -----------------------------------------------------------------------------------


def holding(name: str, folder: Path) -> str:
    return f"""
name: {name}
actions:
  - {{name: first, {SMALL}, steps: ["{HOLD.format(folder)}"]}}
  - {{name: second, needs: [first], {SMALL}, steps: [echo no]}}
"""


def test_ctrl_c_cancels_all_and_waits(one: Served, client: Client, write: Write, tmp_path: Path) -> None:
    run = started(one.env, "run", write(holding("stopped", tmp_path)))
    wait_until(lambda: states(client, "stopped").get("first") == "running")
    run.send_signal(signal.SIGINT)
    _, answer = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 130
    assert b"cancelling stopped-" in answer
    assert states(client, "stopped") == {"first": "cancelled", "second": "cancelled"}


def test_ctrl_c_twice_leaves(one: Served, client: Client, write: Write) -> None:
    stubborn = "trap '' TERM; echo ready; while true; do sleep 0.1; done"
    text = f'name: stubborn\nactions: [{{name: a, grace: 3s, {SMALL}, steps: ["{stubborn}"]}}]'
    run = started(one.env, "run", write(text))
    assert run.stdout is not None
    assert run.stdout.readline() == b"a | ready\n"
    run.send_signal(signal.SIGINT)
    wait_until(lambda: states(client, "stubborn")["a"] == "stopping")
    run.send_signal(signal.SIGINT)
    _, answer = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 130
    assert b"roost: left; `roost wait ci:" in answer
    wait_until(lambda: states(client, "stubborn")["a"] == "cancelled")


def test_the_reader_has_gone(one: Served, client: Client, write: Write) -> None:
    run = started(
        one.env,
        "run",
        write(f"name: loud\nactions: [{{name: a, {SMALL}, steps: ['yes']}}]"),
    )
    assert run.stdout is not None
    assert run.stdout.read(6) == b"a | y\n"
    run.stdout.close()
    assert run.wait(DEADLINE_S) == 141
    wait_until(lambda: states(client, "loud")["a"] == "cancelled")


# --- nodes that come and go -------------------------------------------------------------------------------------------


@contextmanager
def pipeline_on(product: Product, file: Path, text: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`roost ci run` under way against a server of its own."""
    file.write_text(text)
    env = {**os.environ, "ROOST_URL": product.client.url, "ROOST_TOKEN": product.admin_token}
    run = started(env, "run", str(file))
    try:
        yield run
    finally:
        run.kill()
        run.wait()


def test_actions_of_a_dead_node_run_elsewhere(tmp_path: Path) -> None:
    """Three nodes; one loses its power in the middle. All actions succeed, none is lost, and it is reported."""
    names = [f"a{number}" for number in range(9)]
    actions = [f'  - {{name: {name}, steps: ["{HOLD.format(tmp_path)}"]}}' for name in names]
    last = f"  - {{name: last, needs: [{', '.join(names)}], steps: [echo all are over]}}"
    text = "\n".join(["name: dying", "actions:", *actions, last])
    with Product(agents=3, cpu="2") as product, pipeline_on(product, tmp_path / "p.yaml", text) as run:
        client = product.client
        product.wait_until(lambda: Counter(states(client, "dying").values())["running"] == 6)
        running = client.workloads.list(label="pipeline=dying", state="running")
        doomed = {workload.labels["action"] for workload in running
                  if client.instances.get("default", workload.name).node == "node-2"}  # fmt: skip
        assert len(doomed) == 2
        product.wait_until(lambda: all(b"begin" in client.logs.read("default", name) for name in _jobs(client, doomed)))
        kill_node(product, product.pids[2])
        (tmp_path / "go").touch()
        out, answer = run.communicate(timeout=LOST_S_MAX)
        assert run.returncode == 0, answer.decode()
        assert set(states(client, "dying").values()) == {"succeeded"}
        lines = Counter(line for line in out.decode().splitlines() if line.endswith("| end"))
        assert lines == Counter({f"{name:4} | end": 1 for name in names})
        assert out.endswith(b"last | all are over\n")
        for name in doomed:
            assert f"roost: {name} is to run again: node node-2 lost" in answer.decode()
            begun = [line for line in out.decode().splitlines() if line.startswith(f"{name:4} | begin")]
            assert len(begun) == 2, begun
        assert answer.decode().count("is to run again") == 2


def _jobs(client: Client, actions: set[str]) -> list[str]:
    return [
        workload.name
        for workload in client.workloads.list(label="pipeline=dying")
        if workload.labels["action"] in actions
    ]


def test_a_server_that_is_killed_and_comes_back_costs_nothing(tmp_path: Path) -> None:
    text = "\n".join(["name: away", "actions:", f'  - {{name: a, when_lost: pin, steps: ["{HOLD.format(tmp_path)}"]}}',
                      "  - {name: b, needs: [a], steps: [echo b]}"])  # fmt: skip
    with Product(agents=1) as product, pipeline_on(product, tmp_path / "p.yaml", text) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"a | begin /bin/sh\n"
        product.kill_server()
        product.start_server()
        (tmp_path / "go").touch()
        out, answer = run.communicate(timeout=LOST_S_MAX)
        assert (run.returncode, out) == (0, b"a | end\nb | b\n"), answer.decode()


def test_more_actions_than_room_queue_and_none_is_lost(tmp_path: Path) -> None:
    text = "\n".join(["name: queue", "actions:", *(f"  - {{name: a{n:02}, steps: [echo {n}]}}" for n in range(40))])
    with Product(agents=1, cpu="2") as product, pipeline_on(product, tmp_path / "p.yaml", text) as run:
        out, answer = run.communicate(timeout=LOST_S_MAX)
        assert run.returncode == 0, answer.decode()
        assert sorted(out.decode().splitlines()) == [f"a{n:02} | {n}" for n in range(40)]


def test_without_nodes_actions_wait_and_run_when_one_comes(tmp_path: Path) -> None:
    text = "name: early\nactions:\n  - {name: a, steps: [echo a]}\n  - {name: b, needs: [a], steps: [echo b]}\n"
    with Product(agents=0) as product, pipeline_on(product, tmp_path / "p.yaml", text) as run:
        assert run.stderr is not None
        assert b"is sent; --no-send" in run.stderr.readline()
        assert run.stderr.readline().startswith(b"roost: run early-")
        assert b"no node is online" in run.stderr.readline()
        product.start_agent("late")
        out, answer = run.communicate(timeout=LOST_S_MAX)
        assert (run.returncode, out) == (0, b"a | a\nb | b\n"), answer.decode()
