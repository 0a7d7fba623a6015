"""roost console: the serial console of a virtual machine, in this terminal."""

import os
import sys
import threading
from contextlib import ExitStack

import click

from roost.cli.common.exit_codes import NO_SERVER, USAGE, Failure
from roost.cli.common.options import project_option
from roost.cli.common.output import echo_err
from roost.cli.common.session import connect
from roost.cli.common.targets import TARGET, Target, in_project
from roost.cli.inside.exec import STDIN_BYTES, show
from roost.cli.inside.terminal import raw_terminal
from roost.client.errors import Unreachable
from roost.client.tunnels import Tunnel

LEAVE = b"\x1d"  # Ctrl-], as with telnet and virsh


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
def console(target: Target, project: str) -> None:
    """Attach to the serial console of a virtual machine. Ctrl-] leaves it.

    One client at a time; the log of the instance has the output as well. Keys go to the machine as they are. The
    machine goes on when you leave.

    Examples:
      roost console db
      roost console db.1

    Exit code: 0 when you leave or the machine ends, 255 when the way to it was lost.
    Next: `roost logs NAME` has what was printed before.
    """
    found = in_project(target, project)
    stdin = sys.stdin.fileno() if sys.stdin is not None else -1
    left = threading.Event()
    with connect() as client, ExitStack() as stack:
        try:
            tunnel = stack.enter_context(client.tunnels.console(found.project, found.name, index=found.index))
        except ValueError as error:
            raise Failure(str(error), exit_code=USAGE) from None
        if stdin >= 0 and os.isatty(stdin):
            echo_err(f"the console of {found}; Ctrl-] leaves it")
            stack.enter_context(raw_terminal(stdin, tunnel.resize))
        threading.Thread(target=_type, args=(tunnel, stdin, left), daemon=True).start()
        try:
            show(tunnel)
        except Unreachable:
            if not left.is_set():
                raise
    if tunnel.end is not None and tunnel.end.error and not left.is_set():
        raise Failure(tunnel.end.error, exit_code=NO_SERVER)


def _type(tunnel: Tunnel, fd: int, left: threading.Event) -> None:
    try:
        while data := os.read(fd, STDIN_BYTES):
            keys, leave, _ = data.partition(LEAVE)
            if (keys and not tunnel.write(keys)) or leave:
                break
        else:
            return  # not a terminal, and its end: what the machine prints is still shown
    except OSError:
        return
    left.set()
    tunnel.close()
