"""roost doctor: what an operator should know, each line with how bad it is and what to do next."""

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import click

from roost.cli.common.exit_codes import DONE, FAILED
from roost.cli.common.output import Output
from roost.cli.common.session import json_output

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
    server: str = ""  # its URL, where several are checked


ok = partial(DoctorCheck, "ok")
warn = partial(DoctorCheck, "warn")  # something an operator should check
bad = partial(DoctorCheck, "bad")  # something that keeps Roost from working


@click.command()
@click.option("--store", "url", metavar="URL", help="Also check this store: its latency and its consistency.")
@json_output
def doctor(url: str | None) -> Output:
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
    counts = Counter(line.level for line in lines)

    def show() -> None:
        heading = ""
        for line in lines:
            if line.server != heading:
                heading = line.server
                click.echo(f"\n{heading or 'this machine'}:")
            level = click.style(line.level.ljust(5), fg=COLORS[line.level])
            click.echo(f"{level} {line.about.ljust(9)} {line.message}")
            if line.then:
                click.echo(f"{'':15} -> {line.then}")
        click.echo(f"\n{counts['ok']} ok, {counts['warn']} to check, {counts['bad']} bad")

    value = {"lines": [line._asdict() for line in lines], "bad": counts["bad"] > 0}
    return Output(value, show, FAILED if counts["bad"] else DONE)


def examine(url: str | None) -> list[DoctorCheck]:
    from roost.cli.machines.doctor.server import look_at_server
    from roost.cli.machines.doctor.store import look_at_disk, look_at_store
    from roost.client.config import find_config
    from roost.client.errors import NotConfigured

    lines: list[DoctorCheck] = []
    try:
        config = find_config()
    except NotConfigured as error:
        lines.append(DoctorCheck("warn" if url else "bad", "server", str(error), error.hint or "then come back"))
    else:
        urls = [part.strip() for part in config.url.split(",")]
        for server in urls:
            found = limited("server", partial(look_at_server, config._replace(url=server)), LOOK_LIMIT_S)
            lines += [line._replace(server=server) for line in found] if len(urls) > 1 else found
        if any(is_local(server) for server in urls):
            lines += limited("disk", look_at_disk, LOOK_LIMIT_S)
    if url is not None:
        lines += limited("store", lambda: look_at_store(url), STORE_LIMIT_S)
    return lines


def is_local(url: str) -> bool:
    """Whether the server is on this machine, and with it the directories that can be seen here."""
    return urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost", socket.gethostname())


def limited(about: str, check: Callable[[], Iterable[DoctorCheck]], limit_s: float) -> list[DoctorCheck]:
    """The result, or a time-out. A thread that hangs cannot be ended, but the program can."""
    seen: list[DoctorCheck] = []

    def work() -> None:
        try:
            for line in check():
                seen.append(line)
        except Exception as error:  # one check that fails must not hide the others
            seen.append(bad(about, f"the check failed: {error}", "this is a bug; please report it"))

    thread = threading.Thread(target=work, name=f"doctor-{about}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return [*seen, bad(about, f"no answer within {limit_s:g} s", "it hangs: check its log and load")]
    return seen
