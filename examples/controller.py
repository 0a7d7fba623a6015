"""An outside controller in a few lines: schedules actions, and keeps their stages and logs, whatever happens to it.

    python examples/controller.py FOLDER [FILE.json]

FOLDER keeps what is known: of each action NAME.json (stages, result, and the position to go on from) and its log,
NAME.ATTEMPT.log. Kill it and start it again, as often as you like, or restart the server: no stage and no byte of a log
is missing or there twice. FILE.json is a list of workloads; without it, three small ones are run. The server is found
as by the commands: $ROOST_CONFIG, or $ROOST_URL and $ROOST_TOKEN.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from roost.client.controller import Controller
from roost.wire import controller_pb2 as pb

ACTIONS = [
    {"name": "lint", "steps": [{"run": "echo checking"}, {"run": "sleep 1; echo clean"}]},
    {"name": "unit", "command": "for i in 1 2 3; do echo test $i; sleep 0.5; done"},
    {"name": "flaky", "command": "echo no luck; exit 3"},
]


class Notes:
    """What is known of one action, on the disk before anything else is asked for."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.path = folder, name, folder / f"{name}.json"
        stored = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.stages: list[dict[str, object]] = stored.get("stages", [])
        self.result: dict[str, object] | None = stored.get("result")
        self.position = pb.Position(**stored.get("position", {}))

    def take(self, frame: pb.RunFrame) -> None:
        """One frame. The log first, each byte to its place; then, at once, what it all means and how far it goes."""
        if frame.log.data:
            path = self.folder / f"{self.name}.{frame.log.attempt}.log"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
                file.seek(frame.log.offset)
                file.write(frame.log.data)
        if frame.state_lost:
            self.stages.clear()  # all that the server knows follows
        for stage in frame.stages:
            print(f"{self.name}: {stage.state} ({stage.message})", flush=True)
            answer = {"state": stage.state, "message": stage.message, "attempt": stage.attempt, "step": stage.step}
            self.stages.append({**answer, "node": stage.node, "revision": stage.revision})
        if frame.HasField("result"):
            code = frame.result.exit_code if frame.result.HasField("exit_code") else None
            self.result = {"state": frame.result.state, "exit_code": code, "message": frame.result.message}
            print(f"{self.name}: ended {self.result}", flush=True)
        self.position.CopyFrom(frame.position)
        self.save()

    def save(self) -> None:
        """The old or the new, never half of it."""
        position = {field.name: value for field, value in self.position.ListFields()}
        text = json.dumps({"position": position, "stages": self.stages, "result": self.result})
        draft = self.path.with_suffix(".draft")
        draft.write_text(text)
        draft.replace(self.path)


def follow(controller: Controller, folder: Path, action: dict[str, object]) -> bool:
    """See one action through, from wherever it was left. Whether it succeeded."""
    notes = Notes(folder, str(action["name"]))
    if notes.result is None:
        for frame in controller.run(action, attach=True, position=notes.position):
            notes.take(frame)
    return notes.result is not None and notes.result["state"] == "succeeded"


def main(folder: str, file: str = "") -> int:
    """The number of actions that did not succeed."""
    actions = json.loads(Path(file).read_text()) if file else ACTIONS
    Path(folder).mkdir(parents=True, exist_ok=True)
    with Controller.find() as controller, ThreadPoolExecutor(len(actions)) as threads:
        done = list(threads.map(lambda action: follow(controller, Path(folder), action), actions))
    return done.count(False)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
