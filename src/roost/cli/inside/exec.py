"""roost exec: a command inside a running instance, with the terminal of this one."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

import click

from roost.cli.common.exit_codes import NO_SERVER, USAGE, Failure
from roost.cli.common.options import project_option
from roost.cli.common.output import flush, write_bytes
from roost.cli.common.session import connect
from roost.cli.common.targets import TARGET, Target, in_project
from roost.cli.inside.terminal import raw_terminal, size_of
from roost.client.tunnels import Tunnel
from roost.model.tunnels import FrameKind, TunnelEnd

NOT_STARTED = 127
SIGNAL_BASE = 128
PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STDIN_BYTES = 32 << 10


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("-i", "--stdin", "has_stdin", is_flag=True, help="Pass on stdin.")
@click.option("-t", "--tty", "has_terminal", is_flag=True, help="Give the command a terminal; implies -i.")
@project_option
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[--] COMMAND [ARG]...")
def exec_(target: Target, argv: tuple[str, ...], has_stdin: bool, has_terminal: bool, project: str) -> None:
    """Run a command inside a running instance, and return its exit code.

    It has the user, work directory, namespaces, limits and environment of the instance, without its secrets. NAME
    alone is the only running instance. Ctrl-C goes to the command; a second Ctrl-C ends it. What it has started ends
    with it, with the instance, or when this command goes away. The command is in the audit log.

    Examples:
      roost exec train -- nvidia-smi
      roost exec -it train.3 -- sh                 a shell
      roost exec train -- cat out/log > log        bytes as they are
      roost exec -i train -- tar x < patch.tar

    Exit code: that of the command; 128 + N for signal N, 127 when it could not be started, 255 when the way to it was
    lost.
    Next: `roost cp` copies files, `roost port-forward` reaches its ports, `roost console` is for virtual machines.
    """
    argv = argv[1:] if argv[0] == "--" else argv
    found = in_project(target, project)
    stdin = sys.stdin.fileno() if sys.stdin is not None else -1
    if has_terminal and not (stdin >= 0 and os.isatty(stdin)):
        raise click.UsageError("-t needs a terminal as stdin; leave it out in scripts")
    rows, columns = size_of(stdin) if has_terminal else (0, 0)
    with connect() as client, ExitStack() as stack:
        try:
            opened = client.tunnels.exec(
                found.project, found.name, argv, index=found.index, terminal=has_terminal, rows=rows, columns=columns,
                term=os.environ.get("TERM", "") if has_terminal else "",
            )  # fmt: skip
        except ValueError as error:
            raise Failure(str(error), exit_code=USAGE) from None
        tunnel = stack.enter_context(opened)
        if has_terminal:
            stack.enter_context(raw_terminal(stdin, tunnel.resize))
        else:
            stack.callback(_pass_signals(tunnel))
        if has_stdin or has_terminal:
            threading.Thread(target=_send_input, args=(tunnel, stdin), daemon=True).start()
        else:
            tunnel.end_input()
        show(tunnel)
        end = tunnel.end or TunnelEnd()
    sys.exit(_exit_code(end))


def show(tunnel: Tunnel) -> None:
    """Print what comes, until it is over."""
    while (piece := tunnel.read()) is not None:
        kind, data = piece
        write_bytes(data, err=kind is FrameKind.ERRORS)
        flush()


def _send_input(tunnel: Tunnel, fd: int) -> None:
    try:
        while data := os.read(fd, STDIN_BYTES):
            if not tunnel.write(data):
                return
    except OSError:
        pass
    tunnel.end_input()


def _pass_signals(tunnel: Tunnel) -> Callable[[], None]:
    """The first goes to the command, the second ends this one. Returns what undoes it."""
    count = 0

    def heard(number: int, _: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1 or number == signal.SIGHUP:
            raise SystemExit(SIGNAL_BASE + number)
        tunnel.signal(number)

    before = {number: signal.signal(number, heard) for number in PASSED}

    def undo() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return undo


def _exit_code(end: TunnelEnd) -> int:
    """Raises Failure where there is no code of the command."""
    if end.error:
        raise Failure(end.error, exit_code=NOT_STARTED if end.reason == "failed" else NO_SERVER)
    return SIGNAL_BASE + end.signal if end.signal is not None else end.code or 0
