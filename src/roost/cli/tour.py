"""The guide of `roost demo`: shows what is typed, types it, shows what happened and how long it took."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from roost.cli.outcome import Failure

COMMAND_S_MAX = 60.0
LOOK_S = 0.01
LAST_WORDS_MAX = 500  # a line for people, not a whole trace


class Tour:
    """Commands run as a user would run them: each in a process of its own, against the demo's server."""

    def __init__(self, home: Path, up: "subprocess.Popen[bytes]") -> None:
        self._home = home
        self._up = up
        self._env = {**os.environ, "ROOST_CONFIG": str(home / "client.toml")}
        self._number = 0

    def title(self, words: str) -> None:
        """A new part of the tour."""
        self._number += 1
        click.echo()
        click.echo(click.style(f"{self._number}. {words}", bold=True))

    def typed(self, line: str) -> None:
        """What is typed."""
        click.echo(click.style(f"   $ {line}", fg="cyan"))

    def happened(self, words: str, seconds: float) -> None:
        """What happened, and how long it took."""
        click.echo(f"     {words} ({seconds:.2f} s)")

    def file(self, name: str, text: str) -> str:
        """Write a file, and show it."""
        (self._home / name).write_text(text, encoding="utf-8")
        self.typed(f"cat {name}")
        self._show(text)
        return name

    def roost(self, *words: str, code: int = 0) -> None:
        """Run a command and show it. Raises Failure when it does not end as it should."""
        self.typed(shlex.join(("roost", *words)))
        argv = [sys.executable, "-P", "-m", "roost", *words]
        began = time.monotonic()
        try:
            done = subprocess.run(
                argv, env=self._env, cwd=self._home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=COMMAND_S_MAX,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            self._show((late.output or b"").decode(errors="replace"))
            raise Failure(f"this took longer than {COMMAND_S_MAX:.0f} s; {self._last_words()}") from None
        took = time.monotonic() - began
        self._show(done.stdout.decode(errors="replace"))
        click.echo(
            click.style(f"     ({took:.2f} s{f', exit code {done.returncode}' if done.returncode else ''})", dim=True)
        )
        if done.returncode != code:
            raise Failure(f"this should have ended with exit code {code}, not {done.returncode}; {self._last_words()}")

    def wait_for(self, happened: Callable[[], bool], seconds_max: float, what: str) -> float:
        """Wait for something outside of any server; how long it took."""
        began = time.monotonic()
        while not happened():
            if self._up.poll() is not None:
                raise Failure(f"the server has ended: {self._last_words()}")
            if time.monotonic() - began > seconds_max:
                raise Failure(f"waited {seconds_max:.0f} s for {what}; {self._last_words()}")
            time.sleep(LOOK_S)
        return time.monotonic() - began

    def _show(self, text: str) -> None:
        for line in text.splitlines():
            click.echo(f"     {line}")

    def _last_words(self) -> str:
        lines = (self._home / "up.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:LAST_WORDS_MAX] if lines else "it said nothing"
