"""The supervisor of one container, or of one step in it: a child of the keeper, in place of the process of a run.

Started by path as `python -I -S shim.py`, with what to do as JSON on descriptor 0, a file in memory: variables may be
secret, and none of them may reach the environment of a program outside the container. What it finds out is written
back into that file, for the keeper. Its own end is that of the container: exit code, or signal.
"""

import json
import os
import signal
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from roost.keeper.containers.engine import EngineAway, EngineClient, EngineRefused
from roost.keeper.containers.order import began_at
from roost.keeper.containers.usage import ContainerUsage

CALL_S_MAX = 120.0  # a busy engine takes seconds to create a container
NOT_STARTED = 127
SIGNALLED = 128  # and the number of the signal, as an exit code of an engine
OUT_OF_MEMORY = 137
AWAY_PAUSE_S = 0.25  # between two looks whether an engine that went away is back
#: A container of several steps is held by this, which ignores what ends the steps.
HOLDER = ["/bin/sh", "-c", "trap '' TERM INT HUP; read -r line"]


class Shim:
    def __init__(self, order: dict[str, object]) -> None:
        self.name = str(order["name"])
        self.create: dict[str, object] = order["create"]  # type: ignore[assignment]
        self.argv: list[str] = order["argv"]  # type: ignore[assignment]
        self.env: dict[str, str] = order["env"]  # type: ignore[assignment]
        self.is_first = bool(order["first"])
        self.has_steps = bool(order["steps"])
        self.engine = EngineClient(str(order["socket"]), CALL_S_MAX)
        self.started = False
        self.signalled = 0  # the signal that we have passed on, or are to pass on
        self.exec_id = ""
        self.usage: ContainerUsage | None = None

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._terminate)
        if self.is_first:
            self._create()
            if self.signalled:
                return -self.signalled
        return self._run_step() if self.has_steps else self._run_whole()

    # --- the container

    def _create(self) -> None:
        body = {**self.create, "Env": variables(self.env)}
        if self.has_steps:
            body |= {"Entrypoint": HOLDER, "Cmd": [], "OpenStdin": True}
        path = f"/containers/create?name={self.name}"
        try:
            self.engine.call("POST", path, body)
        except EngineRefused as error:
            if error.status != 409:
                raise
            # A leftover of ours has the name: an order to create it was on its way when it was ended.
            self.engine.call("DELETE", f"/containers/{self.name}?force=true&v=true")
            self.engine.call("POST", path, body)

    def _run_whole(self) -> int:
        output = self.engine.stream(f"/containers/{self.name}/attach?stream=true&stdout=true&stderr=true")
        self._start()
        try:
            copy(output)
        except EngineAway:
            pass
        code = self._exit_code()
        return self._ending(code)

    def _start(self) -> None:
        self.engine.call("POST", f"/containers/{self.name}/start")
        self.started = True
        if self.signalled:
            self._pass_on()
        state = self._state()
        pid = state.get("Pid")
        if isinstance(pid, int) and pid > 0:
            report({"pid": pid, "began": began_at(pid)})
            self.usage = ContainerUsage(pid)
            if not self.has_steps:
                self.usage.follow(pid)

    def _state(self) -> dict[str, object]:
        found = self.engine.call("GET", f"/containers/{self.name}/json")
        state = found.get("State") if isinstance(found, dict) else None
        return state if isinstance(state, dict) else {}

    def _exit_code(self) -> int:
        """Wait for its end, also while the engine is away: it may come back with the container."""
        import time

        while True:
            try:
                found = self.engine.call("POST", f"/containers/{self.name}/wait", timeout_s=None)
                return int(found["StatusCode"])  # type: ignore[index]
            except EngineAway:
                time.sleep(AWAY_PAUSE_S)

    def _ending(self, code: int) -> int:
        self._count()
        if code == OUT_OF_MEMORY and self._state().get("OOMKilled"):
            report({"oom": True})
            return -signal.SIGKILL
        return -self.signalled if self.signalled and code == SIGNALLED + self.signalled else code

    def _count(self) -> None:
        """What it used so far; each later step of a container has a shim of its own."""
        if self.usage is None and self.has_steps:
            pid = self._state().get("Pid")
            self.usage = ContainerUsage(pid) if isinstance(pid, int) and pid > 0 else None
        if self.usage is not None:
            report({"usage": self.usage.now()})

    # --- a step in it

    def _run_step(self) -> int:
        if self.is_first:
            self._start()
        self.started = True
        asked = {"Cmd": self.argv, "AttachStdout": True, "AttachStderr": True} | self._place()
        made = self.engine.call("POST", f"/containers/{self.name}/exec", asked)
        self.exec_id = str(made["Id"])  # type: ignore[index]
        copy(self.engine.stream(f"/exec/{self.exec_id}/start", {"Detach": False, "Tty": False}))
        found = self.engine.call("GET", f"/exec/{self.exec_id}/json")
        return self._ending(int(found["ExitCode"]))  # type: ignore[index]

    def _place(self) -> dict[str, object]:
        return {name: self.create[name] for name in ("User", "WorkingDir") if self.create.get(name)}

    # --- its end on request

    def _terminate(self, number: int, frame: object) -> None:
        self.signalled = number
        if self.started:
            self._pass_on()

    def _pass_on(self) -> None:
        """An engine cannot signal a command: everything in the container but its first process is signalled."""
        try:
            if self.has_steps:
                asked = {"Cmd": ["/bin/sh", "-c", f"kill -{self.signalled} -1"]} | self._place()
                made = self.engine.call("POST", f"/containers/{self.name}/exec", asked)
                self.engine.call("POST", f"/exec/{made['Id']}/start", {"Detach": True})  # type: ignore[index]
                return
            found = self.engine.call("GET", f"/containers/{self.name}/json")
            config = found.get("Config") if isinstance(found, dict) else None
            wanted = str((config or {}).get("StopSignal") or self.signalled)
            self.engine.call("POST", f"/containers/{self.name}/kill?signal={wanted}")
        except (EngineAway, EngineRefused):
            pass  # it has ended, or the keeper ends it after the grace


def check(socket: str, name: str, argv: list[str]) -> int:
    """Run a command in a container that is there: its health check."""
    engine = EngineClient(socket, CALL_S_MAX)
    made = engine.call("POST", f"/containers/{name}/exec", {"Cmd": argv, "AttachStdout": True, "AttachStderr": True})
    exec_id = made["Id"]  # type: ignore[index]
    copy(engine.stream(f"/exec/{exec_id}/start", {"Detach": False, "Tty": False}))
    return int(engine.call("GET", f"/exec/{exec_id}/json")["ExitCode"])  # type: ignore[index]


def copy(output: object) -> None:
    """Frames of the engine to our stdout and stderr: a type, three zeros, a length, and so many bytes."""
    buffer = b""
    kind = left = 0
    while data := output.read():  # type: ignore[attr-defined]
        buffer = buffer + data if buffer else data
        at, size = 0, len(buffer)
        while True:
            if left:
                piece = buffer[at : at + left]
                at += len(piece)
                left -= len(piece)
                write(2 if kind == 2 else 1, piece)
            if left or size - at < 8:
                break
            kind, left = buffer[at], int.from_bytes(buffer[at + 4 : at + 8], "big")
            at += 8
        buffer = buffer[at:]


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def variables(env: dict[str, str]) -> list[str]:
    found = [f"{name}={value}" for name, value in env.items()]
    for item in found:
        try:
            item.encode()
        except UnicodeEncodeError:
            raise EngineRefused(0, f"{item.partition('=')[0]}: no text in UTF-8, as a container needs it") from None
    return found


_findings: dict[str, object] = {}


def report(news: dict[str, object]) -> None:
    """Write what we know into the file that we were started with, over all of it."""
    _findings.update(news)
    data = json.dumps(_findings).encode()
    os.ftruncate(0, 0)
    os.pwrite(0, data, 0)


def main() -> int:
    if len(sys.argv) > 4 and sys.argv[1] == "check":
        try:
            return check(sys.argv[2], sys.argv[3], sys.argv[4:])
        except (EngineAway, EngineRefused) as error:
            write(1, f"container: {error}".encode())
            return NOT_STARTED
    size = os.fstat(0).st_size
    order = json.loads(os.pread(0, size, 0))
    report({})
    shim = Shim(order)
    try:
        code = shim.run()
    except (EngineAway, EngineRefused) as error:
        report({"error": f"container: {error}"})
        return NOT_STARTED
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code & 255


if __name__ == "__main__":
    sys.exit(main())
