"""roost doctor: what an operator should know, each line with how bad it is and what to do next."""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from roost.cli.common.exit_codes import FAILED
from roost.cli.common.output import print_json
from roost.cli.common.session import json_option

if TYPE_CHECKING:
    from roost.client.config import Config

Level = Literal["ok", "warn", "bad"]

# Limit of all checks of one thing. A healthy server needs a tenth of a second.
LOOK_LIMIT_S = 20.0
STORE_LIMIT_S = 180.0  # a store of 10 million records is read in two minutes

COLORS = {"ok": "green", "warn": "yellow", "bad": "red"}


class DoctorCheck(NamedTuple):
    """The result of one check. `then`: what to do about it."""

    level: Level
    about: str
    message: str
    then: str = ""


def ok(about: str, message: str) -> DoctorCheck:
    """Nothing to do."""
    return DoctorCheck("ok", about, message)


def warn(about: str, message: str, then: str) -> DoctorCheck:
    """Something an operator should check."""
    return DoctorCheck("warn", about, message, then)


def bad(about: str, message: str, then: str) -> DoctorCheck:
    """Something that keeps Roost from working."""
    return DoctorCheck("bad", about, message, then)


RunCheck = Callable[[], Iterable[DoctorCheck]]


@click.command()
@click.option("--store", "url", metavar="URL", help="Also check this store: its latency and its consistency.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, url: str | None, as_json: bool) -> None:
    """Check server, nodes, store and work; exit with 1 if something is bad.

    It checks the server of your client configuration. With --store, on a machine that can reach it, it also checks the
    state itself. Nothing changes, and every check has a time limit.

    Examples:
      roost doctor
      roost doctor --store /var/lib/roost
      roost doctor --store postgresql://roost@db-1/roost --json

    Next: follow the arrows, bad lines first. `roost status` and `roost nodes` have the details.
    """
    from roost.stores.factory import read_place

    if url is not None:
        read_place(url)  # wrong usage is reported before any check
    lines = examine(url)
    if as_json:
        print_json({"lines": [line._asdict() for line in lines], "bad": any(line.level == "bad" for line in lines)})
    else:
        for line in lines:
            click.echo(
                f"{click.style(line.level.ljust(5), fg=COLORS[line.level])} {line.about.ljust(9)} {line.message}"
            )
            if line.then:
                click.echo(f"{'':15} -> {line.then}")
        counts = {level: sum(line.level == level for line in lines) for level in COLORS}
        click.echo(f"\n{counts['ok']} ok, {counts['warn']} to check, {counts['bad']} bad")
    if any(line.level == "bad" for line in lines):
        ctx.exit(FAILED)


def examine(url: str | None) -> list[DoctorCheck]:
    """All checks that are possible from here."""
    from roost.cli.machines.doctor.server import look_at_server
    from roost.cli.machines.doctor.store import look_at_disk, look_at_store
    from roost.client.config import find_config
    from roost.client.errors import NotConfigured

    lines: list[DoctorCheck] = []
    config: Config | None = None
    try:
        config = find_config()
    except NotConfigured as error:
        level: Level = "warn" if url else "bad"
        lines.append(DoctorCheck(level, "server", str(error), error.hint or "then come back"))
    if config is not None:
        for part in config.url.split(","):
            one = config._replace(url=part.strip())
            lines += limited("server", lambda one=one: look_at_server(one), LOOK_LIMIT_S)  # type: ignore[misc]
    lines += limited("disk", look_at_disk, LOOK_LIMIT_S)
    if url is not None:
        lines += limited("store", lambda: look_at_store(url), STORE_LIMIT_S)
    return lines


def limited(about: str, check: RunCheck, limit_s: float) -> list[DoctorCheck]:
    """The result, or a time-out. A thread that hangs cannot be ended, but the program can."""
    seen: list[DoctorCheck] = []
    trouble: list[Exception] = []

    def work() -> None:
        try:
            for line in check():
                seen.append(line)
        except Exception as error:  # one look that fails must not hide the others
            trouble.append(error)

    thread = threading.Thread(target=work, name=f"doctor-{about}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return [*seen, bad(about, f"no answer within {limit_s:g} s", "it hangs: check its log and load")]
    return [*seen, *(bad(about, f"the check failed: {error}", "this is a bug; please report it") for error in trouble)]
