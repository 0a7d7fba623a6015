"""Real servers, keepers, agents and processes: what is killed, stopped, cut off or restarted, and what comes of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from roost_lab.bench.product import Product

from roost.client.stream import LogFollower, StderrBytes
from roost.schema.feed import AttemptView, EndingView
from roost.schema.work import InstanceView

ADOPTED_S_MAX = 1.0
LOST_S_MAX = 5.0
ELSEWHERE_S_MAX = 0.3
BURST_S = 2.0  # how much later than promised a busy machine may be before a test calls it wrong

TICKING = "while :; do date +%s%N >> {0}/$ROOST_ATTEMPT; sleep 0.02; done"


def agent_of(keeper: int) -> int:
    """The agent of a keeper; 0: there is none just now."""
    found = subprocess.run(["pgrep", "-P", str(keeper), "-f", "roost.agent"], capture_output=True, text=True)
    return int(found.stdout.split()[0]) if found.stdout.strip() else 0


def kill_agent(product: Product) -> int:
    """KILL the agent of the last node as soon as there is one; its pid."""
    found: list[int] = []
    product.wait_until(lambda: found.append(agent_of(product.pids[-1])) or found[-1])
    os.kill(found[-1], signal.SIGKILL)
    return found[-1]


def ticks(folder: Path, attempt: int) -> list[int]:
    """The moments at which an attempt was seen alive, by one clock for all."""
    path = folder / str(attempt)
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def timed(product: Product, holds: Callable[[], object]) -> float:
    """How long until something holds."""
    began = time.monotonic()
    product.wait_until(holds)
    return time.monotonic() - began


def instance(product: Product, name: str) -> InstanceView:
    return product.client.instances.get("default", name)


def followed(product: Product, name: str) -> bytes:
    """A whole log, as the client that follows it gets it."""
    pieces: list[bytes] = []
    with product.client.logs.follow("default", name) as follower:
        while not isinstance(piece := follower.piece(timeout_s=60), EndingView):
            assert piece is not None, "the log did not end"
            pieces += [piece] if isinstance(piece, bytes) else []
    return b"".join(pieces)


def is_state(product: Product, name: str, *states: str) -> Callable[[], bool]:
    return lambda: instance(product, name).state in states


def kill_node(product: Product, keeper: int) -> None:
    """A machine loses its power: keeper, agent and work are gone at once."""
    process = next(popen for popen in product._processes if popen.pid == keeper)
    product._processes.remove(process)
    home = next(path for path in product.data.iterdir() if (path / "keeper.lock").exists() and _pid(path) == keeper)
    os.kill(keeper, signal.SIGSTOP)
    for pid in [*pids_of(home), keeper]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def pids_of(home: Path) -> list[int]:
    """What the keeper of a directory has started, and what that has started."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_of(int(name), home)]


def _pid(home: Path) -> int:
    return int((home / "keeper.lock").read_text() or 0)


def _is_of(pid: int, home: Path) -> bool:
    try:
        return f"ROOST_KEEPER={home}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


# --- the agent dies, hangs, or leaves ---------------------------------------------------------------------------------


@pytest.mark.serial
def test_a_killed_agent_stops_nothing_and_the_next_one_adopts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOST_LEASE_MS", "60000")  # an agent that comes back late on a busy machine costs no lease
    with Product(agents=1) as product:
        keeper = product.pids[-1]
        script = f"echo before; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo after; exit 7"
        product.client.workloads.submit({"name": "long", "command": script, "retries": 0})
        product.wait_until(lambda: product.client.logs.read("default", "long") == b"before\n")
        product.wait_until(is_state(product, "long", "running"))
        start_s = seconds_of_a_start()
        killed = kill_agent(product)
        back_s = timed(product, lambda: agent_of(keeper) not in (0, killed) and _is_ready(product, 1))
        assert back_s < ADOPTED_S_MAX + 4 * start_s
        (tmp_path / "go").touch()
        product.wait_until(is_state(product, "long", "failed"))
        story = instance(product, "long")
        assert (story.exit_code, story.attempt) == (7, 1)
        assert followed(product, "long") == b"before\nafter\n"


def test_both_logs_of_a_separate_stderr_outlive_a_killed_agent_and_a_killed_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One follower of both, while first the agent and then the server is killed."""
    monkeypatch.setenv("ROOST_LEASE_MS", "60000")  # a server that comes back late on a busy machine costs no lease
    turn = f"echo out $turn; echo err $turn >&2; while [ ! -e {tmp_path}/$turn ]; do sleep 0.01; done"
    script = f"for turn in 1 2 3; do {turn}; done; printf end >&2; exit 3"
    with Product(agents=1) as product:
        product.client.workloads.submit({"name": "apart", "command": script, "stderr": "separate", "retries": 0})
        with product.client.logs.follow("default", "apart", attempt=1, stream="all") as follower:
            shown = list(shown_until(follower, b"out 1\n", b"err 1\n"))
            kill_agent(product)
            (tmp_path / "1").touch()
            shown += shown_until(follower, b"out 2\n", b"err 2\n")
            product.kill_server()
            (tmp_path / "2").touch()
            product.start_server()
            shown += shown_until(follower, b"out 3\n", b"err 3\n")
            (tmp_path / "3").touch()
            shown += shown_until(follower, b"", b"end")
            end = follower.piece(timeout_s=60)
        assert isinstance(end, EndingView) and (end.state, end.exit_code, end.attempt) == ("failed", 3, 1)
        assert b"".join(shown[0::2]) == product.client.logs.read("default", "apart") == b"out 1\nout 2\nout 3\n"
        read = product.client.logs.read("default", "apart", stream="stderr")
        assert b"".join(shown[1::2]) == read == b"err 1\nerr 2\nerr 3\nend"
        product.wait_until(lambda: not list(product.data.glob("*/logs/default~apart~*")))


def shown_until(follower: LogFollower, *wanted: bytes) -> tuple[bytes, bytes]:
    """The pieces of stdout and stderr until they are exactly this."""
    shown = [b"", b""]
    while shown != list(wanted):
        piece = follower.piece(timeout_s=60)
        assert isinstance(piece, bytes | AttemptView), piece
        if isinstance(piece, bytes):
            shown[isinstance(piece, StderrBytes)] += piece
        assert all(part.startswith(found) for part, found in zip(wanted, shown, strict=True)), shown
    return shown[0], shown[1]


def test_an_end_while_the_agent_is_dead_is_not_lost(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo done; exit 3"
        product.client.workloads.submit({"name": "quick", "command": script, "retries": 0})
        product.wait_until(is_state(product, "quick", "running"))
        kill_agent(product)
        (tmp_path / "go").touch()
        product.wait_until(is_state(product, "quick", "failed"))
        assert (instance(product, "quick").exit_code, instance(product, "quick").attempt) == (3, 1)
        product.wait_until(lambda: product.client.logs.read("default", "quick") == b"done\n")


@pytest.mark.serial
def test_a_stopped_agent_loses_its_fenced_work_at_the_end_of_the_lease_and_it_never_runs_twice(
    tmp_path: Path,
) -> None:
    with Product(agents=1) as product:
        keeper = product.pids[-1]
        product.client.workloads.submit({"name": "ticker", "command": TICKING.format(tmp_path)})
        product.wait_until(lambda: ticks(tmp_path, 1))
        product.start_agent("other")
        product.wait_until(lambda: _is_ready(product, 2))
        agent = agent_of(keeper)
        os.kill(agent, signal.SIGSTOP)
        moved_s = timed(product, lambda: ticks(tmp_path, 2))
        assert moved_s < LOST_S_MAX + BURST_S
        os.kill(agent, signal.SIGCONT)
        product.wait_until(lambda: _is_ready(product, 2))
        seen = len(ticks(tmp_path, 2))
        product.wait_until(lambda: len(ticks(tmp_path, 2)) > seen + 10)
        assert ticks(tmp_path, 1)[-1] < ticks(tmp_path, 2)[0]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
        assert instance(product, "ticker").node == "other"


def test_nothing_runs_on_when_the_keeper_is_killed(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        product.client.workloads.submit({"name": "ticker", "command": TICKING.format(tmp_path)})
        product.wait_until(lambda: ticks(tmp_path, 1))
        keeper = product._processes.pop()
        home = product.data / "node-1"
        keeper.kill()
        keeper.wait()
        product.wait_until(lambda: not pids_of(home))
        product.wait_until(lambda: product.client.nodes.get("node-1").status in ("suspect", "lost"))


@pytest.mark.serial
def test_a_node_that_leaves_stops_its_work_and_it_moves_at_once(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        keeper = product.pids[-1]
        product.client.workloads.submit({"name": "ticker", "command": TICKING.format(tmp_path)})
        product.wait_until(lambda: ticks(tmp_path, 1))
        product.start_agent("other")
        product.wait_until(lambda: _is_ready(product, 2))
        leaving = product._processes.pop(1)
        assert leaving.pid == keeper
        leaving.terminate()
        moved_s = timed(product, lambda: ticks(tmp_path, 2))
        assert leaving.wait(20) == 0
        assert moved_s < 2 + BURST_S
        assert ticks(tmp_path, 1)[-1] < ticks(tmp_path, 2)[0]
        assert product.client.nodes.get("node-1").status == "stopped"


# --- a whole node dies ------------------------------------------------------------------------------------------------


@pytest.mark.serial
def test_work_of_a_dead_node_runs_elsewhere_within_five_seconds(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        keeper = product.pids[-1]
        product.client.workloads.submit({"name": "ticker", "command": f"echo here; {TICKING.format(tmp_path)}"})
        product.wait_until(lambda: ticks(tmp_path, 1))
        product.start_agent("other")
        product.wait_until(lambda: _is_ready(product, 2))
        product.wait_until(lambda: product.client.logs.read("default", "ticker", attempt=1) == b"here\n")
        kill_node(product, keeper)
        moved_s = timed(product, lambda: ticks(tmp_path, 2))
        assert moved_s < LOST_S_MAX + BURST_S
        assert ticks(tmp_path, 1)[-1] < ticks(tmp_path, 2)[0]
        story = instance(product, "ticker")
        assert (story.node, story.attempt, story.losses) == ("other", 2, 1)
        assert product.client.nodes.get("node-1").status == "lost"
        assert product.client.logs.read("default", "ticker", attempt=1) == b"here\n"


@pytest.mark.serial
def test_what_may_run_twice_starts_elsewhere_as_soon_as_the_stream_breaks(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        keeper = product.pids[-1]
        product.client.workloads.submit({"name": "ticker", "command": TICKING.format(tmp_path), "fenced": False})
        product.wait_until(lambda: ticks(tmp_path, 1))
        product.start_agent("other")
        product.wait_until(lambda: _is_ready(product, 2))
        broke = time.time_ns()
        kill_node(product, keeper)
        product.wait_until(lambda: ticks(tmp_path, 2))
        moved_s = (ticks(tmp_path, 2)[0] - broke) / 1e9
        assert moved_s < ELSEWHERE_S_MAX + BURST_S


# --- the server -------------------------------------------------------------------------------------------------------


def test_a_killed_server_restarts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_LEASE_MS", "60000")  # a server that comes back late on a busy machine costs no lease
    with Product(agents=1, cpu="8") as product:
        for number in range(4):
            folder = tmp_path / str(number)
            folder.mkdir()
            product.client.workloads.submit({"name": f"t-{number}", "command": TICKING.format(folder)})
        product.wait_until(lambda: all(ticks(tmp_path / str(number), 1) for number in range(4)))
        product.kill_server()
        product.start_server()
        product.wait_until(lambda: _is_ready(product, 1))
        product.wait_until(lambda: all(instance(product, f"t-{number}").state == "running" for number in range(4)))
        seen = [len(ticks(tmp_path / str(number), 1)) for number in range(4)]
        product.wait_until(lambda: all(len(ticks(tmp_path / str(n), 1)) > seen[n] + 5 for n in range(4)))
        assert all(instance(product, f"t-{number}").attempt == 1 for number in range(4))
        assert all(os.listdir(tmp_path / str(number)) == ["1"] for number in range(4))


def test_logs_are_whole_after_a_restart_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_LEASE_MS", "60000")
    script = f"seq 1 2000; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; seq 2001 4000"
    with Product(agents=1) as product:
        product.client.workloads.submit({"name": "writer", "command": script})
        product.wait_until(lambda: len(product.client.logs.read("default", "writer").split()) == 2000)
        product.kill_server()
        (tmp_path / "go").touch()
        product.start_server()
        product.wait_until(is_state(product, "writer", "succeeded"))
        text = followed(product, "writer")
        assert text == b"".join(b"%d\n" % number for number in range(1, 4001))


# --- logs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command, expected",
    [
        (["head", "-c", "65531", "/dev/zero"], b"\0" * 65_531),
        ("head -c 65531 /dev/zero | tr '\\0' x; echo", b"x" * 65_531 + b"\n"),
        (["python3", "-c", "import os; os.write(1, bytes(range(256)) * 4)"], bytes(range(256)) * 4),
        (["/bin/true"], b""),
        ("printf 'to both'; printf ' of them' >&2", b"to both of them"),
    ],
    ids=["zeros", "a long line", "all bytes", "nothing", "both streams"],
)
def test_log_bytes_arrive_as_they_were_written(command: str | list[str], expected: bytes) -> None:
    with Product(agents=1) as product:
        product.client.workloads.run_to_end({"name": "writer", "command": command}, timeout_s=30)
        assert followed(product, "writer") == expected


def test_a_log_of_twenty_megabytes_arrives_whole(tmp_path: Path) -> None:
    noise = os.urandom(1 << 20) * 20
    (tmp_path / "noise").write_bytes(noise)
    with Product(agents=1) as product:
        product.client.workloads.run_to_end({"name": "big", "command": ["cat", str(tmp_path / "noise")]}, timeout_s=60)
        assert followed(product, "big") == noise
        logs = product.data / "node-1" / "logs"
        product.wait_until(lambda: not list(logs.iterdir()))


@pytest.mark.serial
def test_an_agent_is_connected_soon_after_its_start() -> None:
    with Product(agents=0) as product:
        start_s = seconds_of_a_start()
        began = time.monotonic()
        product.start_agent("n1")
        product.wait_until(lambda: product.client.status().agents_connected == 1)
        assert time.monotonic() - began < 1.5 + 4 * start_s


def seconds_of_a_start() -> float:
    """Of Python and the imports of an agent, on these cores as busy as they are: most of the start of an agent."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "roost.agent", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def _is_ready(product: Product, count: int) -> bool:
    return product.client.status().nodes.get("ready", 0) == count
