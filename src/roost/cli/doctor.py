"""roost doctor: what an operator should know, each line with how bad it is and what to do next."""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from roost.cli.outcome import FAILED
from roost.cli.output import print_json
from roost.cli.session import json_option

if TYPE_CHECKING:
    from roost.client.config import Config

Level = Literal["ok", "warn", "bad"]

# All looks at one thing together. A healthy server needs a tenth of a second, one that hangs is not waited for.
LOOK_LIMIT_S = 20.0
STORE_LIMIT_S = 180.0  # a store of 10 million records is read in two minutes

COLORS = {"ok": "green", "warn": "yellow", "bad": "red"}


class Line(NamedTuple):
    """One thing that was looked at. `then`: what to do about it."""

    level: Level
    about: str
    words: str
    then: str = ""


Look = Callable[[], Iterable[Line]]


@click.command(
    epilog="""\b
Examples:
  roost doctor
  roost doctor --store /var/lib/roost
  roost doctor --store postgresql://roost@db-1/roost --json
\b
Next: what the arrows say, what is bad first. `roost status` and `roost nodes` show the same things in full.
"""
)
@click.option("--store", "url", metavar="URL", help="Look at this store too: how fast it is, and whether it is sound.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Look at everything a Roost depends on, and say what is wrong; exit with 1 if something is bad.

    The server is the one your client is configured for. With --store (on a machine that can reach it) the state itself
    is looked at, too. Nothing is changed anywhere, and everything has a time limit.
    """
    from roost.stores.opening import read_place  # noqa: PLC0415

    if url is not None:
        read_place(url)  # wrong usage is told before anything is looked at
    lines = examine(url)
    if as_json:
        print_json({"lines": [line._asdict() for line in lines], "bad": any(line.level == "bad" for line in lines)})
    else:
        for line in lines:
            show(line)
        counts = {level: sum(line.level == level for line in lines) for level in COLORS}
        click.echo(f"\n{counts['ok']} ok, {counts['warn']} to look at, {counts['bad']} bad")
    if any(line.level == "bad" for line in lines):
        ctx.exit(FAILED)


def examine(url: str | None) -> list[Line]:
    """Everything that can be looked at from here."""
    from roost.cli.doctor_server import look_at_server  # noqa: PLC0415
    from roost.cli.doctor_store import look_at_disk, look_at_store  # noqa: PLC0415
    from roost.client.config import find_config  # noqa: PLC0415
    from roost.client.errors import NotConfigured  # noqa: PLC0415

    lines: list[Line] = []
    config: Config | None = None
    try:
        config = find_config()
    except NotConfigured as error:
        level: Level = "warn" if url else "bad"
        lines.append(Line(level, "server", str(error), error.hint or "then come back"))
    if config is not None:
        for each in config.url.split(","):
            one = config._replace(url=each.strip())
            lines += limited("server", lambda one=one: look_at_server(one), LOOK_LIMIT_S)  # type: ignore[misc]
    lines += limited("disk", look_at_disk, LOOK_LIMIT_S)
    if url is not None:
        lines += limited("store", lambda: look_at_store(url), STORE_LIMIT_S)
    return lines


def limited(about: str, look: Look, limit_s: float) -> list[Line]:
    """What was seen, or that it took too long. Nobody can end a thread that hangs, but the program can."""
    seen: list[Line] = []
    trouble: list[Exception] = []

    def work() -> None:
        try:
            for line in look():
                seen.append(line)
        except Exception as error:  # one look that fails must not hide the others
            trouble.append(error)

    thread = threading.Thread(target=work, name=f"doctor-{about}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        seen = [
            *seen,
            Line("bad", about, f"no answer within {limit_s:g} s", "something hangs: look at its log and load"),
        ]
    if trouble:
        seen = [
            *seen,
            Line("bad", about, f"cannot be looked at: {trouble[0]}", "this is not expected; please report it"),
        ]
    return seen


def show(line: Line) -> None:
    """For people."""
    click.echo(f"{click.style(line.level.ljust(5), fg=COLORS[line.level])} {line.about.ljust(9)} {line.words}")
    if line.then:
        click.echo(f"{'':15} -> {line.then}")
