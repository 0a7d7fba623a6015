"""A terminal of 80 columns (tmux) with a shell, typed into and read as a person does."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.serving import DEADLINE_S, wait_until

COLUMNS, ROWS = 80, 60
PROMPT = re.compile(r"\[(\d+)\]\$ ?(.*)")  # with the exit code of the last command
TMUX_S = 20.0  # for one command of tmux, which takes milliseconds


class Typed(NamedTuple):
    """What a command left on the screen, and its exit code. `wrapped`: lines that were wider than the terminal."""

    code: int
    lines: list[str]
    wrapped: list[str]


class Terminal:
    def __init__(self, socket: Path, window: str) -> None:
        self._socket = socket
        self._window = window

    def tmux(self, *arguments: str) -> str:
        argv = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=TMUX_S).stdout

    def send(self, *keys: str) -> None:
        self.tmux("send-keys", "-t", self._window, *keys)

    def screen(self) -> list[str]:
        """Everything since the screen was cleared; a line that the terminal wrapped is one line."""
        text = self.tmux("capture-pane", "-t", self._window, "-p", "-J", "-S", "-")
        return [line.rstrip() for line in text.rstrip().splitlines()]

    def shows(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.screen()))

    def type(self, line: str, deadline_s: float = DEADLINE_S) -> Typed:
        """Type a line and wait for the next prompt."""
        self.send("C-l")
        wait_until(self._is_cleared)
        self.send("-l", line)
        self.send("Enter")
        wait_until(lambda: self._begin_of(line) is not None and self._code() is not None, deadline_s)
        code, begin = self._code(), self._begin_of(line)
        assert code is not None and begin is not None
        first, *lines = self.screen()[begin:-1]
        rest = PROMPT.fullmatch(first)
        assert rest is not None
        if output := rest[2].removeprefix(line).strip():
            lines.insert(0, output)  # a command as wide as the terminal is joined with what follows
        return Typed(code, lines, [line for line in lines if len(line) > COLUMNS])

    def _begin_of(self, line: str) -> int | None:
        """Where the prompt with a line is on the screen. A prompt of before may be above it: Ctrl-L is not instant."""
        for number, shown in enumerate(self.screen()):
            found = PROMPT.fullmatch(shown)
            if found is not None and found[2].startswith(line.rstrip()):
                return number
        return None

    def waits(self) -> None:
        """Until the shell waits for a line."""
        wait_until(lambda: self._code() is not None)

    def _is_cleared(self) -> bool:
        """Whether nothing but a prompt is left; Ctrl-L moves what was there into the history."""
        self.tmux("clear-history", "-t", self._window)
        return len(self.screen()) == 1 and self._code() is not None

    def _code(self) -> int | None:
        """The exit code in the prompt that waits for a line; None: a command runs."""
        found = PROMPT.fullmatch(self.screen()[-1]) if self.screen() else None
        return int(found[1]) if found is not None and not found[2] else None


@contextmanager
def terminals(folder: Path, home: Path, directory: Path, count: int) -> Iterator[list[Terminal]]:
    """Terminals side by side, with nothing of the environment but the PATH to this Python's programs."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed, and only root could do that")
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    env = {"HOME": str(home), "PATH": path, "PS1": "[$?]$ ", "LANG": "C.UTF-8", "TERM": "screen"}
    shell = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), "bash", "--norc", "--noprofile"]
    size = ("-x", str(COLUMNS), "-y", str(ROWS), "-c", str(directory))
    made = [Terminal(folder / "tmux.sock", f"person-{number}") for number in range(count)]
    try:
        for number in range(count):
            made[0].tmux("new-session", "-d", "-s", f"person-{number}", *size, *shell)
        yield made
    finally:
        subprocess.run(["tmux", "-S", str(folder / "tmux.sock"), "kill-server"], capture_output=True, timeout=TMUX_S)
