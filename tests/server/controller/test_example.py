"""The example controller, killed in the middle and cut off: no stage and no byte is missing or there twice."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from roost.client.config import read_config
from roost.client.controller import Controller
from tests.cli.serving import DEADLINE_S, Served, serving, up, wait_until

EXAMPLE = Path(__file__).parents[3] / "examples" / "controller.py"
LINES = 400
BINARY_BYTES = 50 << 20


def start(served: Served, folder: Path, actions: list[dict[str, Any]]) -> "subprocess.Popen[bytes]":
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(actions))
    arguments = [sys.executable, str(EXAMPLE), str(folder), str(file)]
    return subprocess.Popen(arguments, env=served.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def notes(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {"stages": [], "result": None}


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def talker(name: str, code: int = 0) -> dict[str, Any]:
    """Writes a line every few milliseconds, for some seconds; in two steps."""
    talk = f"for i in $(seq {LINES}); do echo {name} line $i; sleep 0.005; done"
    return {"name": name, "steps": [{"run": talk}, {"run": f"{talk}; exit {code}"}]}


def test_it_is_killed_in_the_middle_and_nothing_is_missing(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "notes"
    home.mkdir()
    actions = [talker("one"), talker("two", code=3)]
    with up(home) as served:
        first = start(served, folder, actions)
        wait_until(lambda: all(size(folder / f"{action['name']}.1.log") > 1_000 for action in actions))
        first.kill()  # no word of goodbye
        first.wait(DEADLINE_S)
        before = {action["name"]: (notes(folder, action["name"])["stages"]) for action in actions}
        second = start(served, folder, actions)
        wait_until(lambda: any(notes(folder, action["name"]).get("result") for action in actions))
        output, _ = second.communicate(timeout=DEADLINE_S)
        assert second.returncode == 1, output  # one action fails, on purpose
        with served.client() as client:
            for name, code in (("one", 0), ("two", 3)):
                answer = notes(folder, name)
                expected = "".join(f"{name} line {number}\n" for number in range(1, LINES + 1)) * 2
                assert (folder / f"{name}.1.log").read_text() == expected
                assert answer["result"]["exit_code"] == code
                assert answer["stages"][: len(before[name])] == before[name]
                story = client.instances.get("default", name, 0).story
                states = [(line.state, line.revision) for line in story]
                seen = [(stage["state"], stage["revision"]) for stage in answer["stages"] if not stage["step"]]
                ended = [(stage["state"], stage["revision"]) for stage in answer["stages"]][-1]
                # Waiting has no record, and so no revision, until the action is placed.
                assert [item for item in [*seen, ended] if item[1]] == [
                    state for state in states if state in [*seen, ended]
                ]
                assert [state for state, _ in states] == ["queued", *[s for s, r in [*seen, ended] if s != "queued"]]
                assert 1 in [stage["step"] for stage in answer["stages"]]
        third = start(served, folder, actions)  # all is known: nothing is asked for, nothing runs again
        assert third.communicate(timeout=DEADLINE_S)[0] == b"" and third.returncode == 1


def test_fifty_megabytes_of_anything_arrive_identical(tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 50
    assert len(data) == BINARY_BYTES
    (tmp_path / "data").write_bytes(data)
    home = tmp_path / "home"
    home.mkdir()
    with up(home) as served, Controller.find(read_config(served.config)) as controller:
        digest, length, result = hashlib.sha256(), 0, None
        for frame in controller.run({"name": "big", "command": f"cat {tmp_path / 'data'}"}):
            if frame.log.data:
                assert frame.log.offset == length
                digest.update(frame.log.data)
                length += len(frame.log.data)
            result = frame.result if frame.HasField("result") else result
        assert result is not None and result.state == "succeeded"
        assert length == BINARY_BYTES and digest.digest() == hashlib.sha256(data).digest()


def test_a_server_that_is_killed_and_started_again_is_taken_up_where_it_was(tmp_path: Path) -> None:
    """On the same ports, so that it is found again."""
    home = tmp_path / "home"
    home.mkdir()
    with serving(home, "server", "--lease", "20000") as served:
        with served.client() as client:
            address = client.status().controllers[0]
            url = client.url
        config = read_config(served.config)
        with Controller(address, config.token) as controller:
            controller.schedule({"name": "waits", "command": "true"})
            frames = controller.run({"name": "waits", "command": "true"}, attach=True)
            stages = [stage.state for frame in [next(frames), next(frames)] for stage in frame.stages]
            assert stages == ["queued"]
            watching = controller.watch(interval_ms=20)
            mark = ""
            while not mark:
                mark = next(watching).mark
            served.process.send_signal(signal.SIGKILL)
            served.process.wait(DEADLINE_S)
            arguments = ["server", "--data", str(home), "--listen", url.rpartition("/")[2], "--lease", "20000"]
            # By default agents get the port after that of the API, and another process may have that one.
            ports = ["--controller-listen", address, "--agents-listen", "127.0.0.1:0"]
            again = subprocess.Popen(
                [sys.executable, "-m", "roost", *arguments, *ports], stdout=subprocess.DEVNULL, start_new_session=True
            )
            try:
                assert controller.unschedule("default", "waits").name == "waits"
                rest = [stage.state for frame in frames for stage in frame.stages]
                assert rest in (["cancelled"], ["queued", "cancelled"])
                for frame in watching:
                    if any(change.workload.state == "cancelled" for change in frame.changes):
                        break
            finally:
                again.kill()
                again.wait(DEADLINE_S)
