"""roost port-forward: ports of this machine that lead to ports of a running instance."""

import socket
import threading
from contextlib import ExitStack, suppress
from typing import NamedTuple

import click

from roost.cli.common.exit_codes import USAGE, Failure
from roost.cli.common.interrupts import Interrupts
from roost.cli.common.options import project_option
from roost.cli.common.output import echo_err
from roost.cli.common.session import connect
from roost.cli.common.targets import TARGET, Target, in_project
from roost.client import Client, find_config
from roost.client.errors import ClientError
from roost.client.running import running_index
from roost.client.tunnels import Tunnel
from roost.model.tunnels import FrameKind

CONNECTIONS_MAX = 32  # at a time, as many as a server lets one principal have
BACKLOG = 16
READ_BYTES = 32 << 10


class Forward(NamedTuple):
    local: int
    remote: str  # a name or a number


class ForwardType(click.ParamType[Forward]):
    name = "forward"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Forward:
        local, colon, remote = value.partition(":")
        remote = remote if colon else local
        if not colon and not local.isdecimal():
            local = "0"
        if not (local.isascii() and local.isdecimal() and int(local) < 65_536 and remote):
            self.fail(f"{value!r} is not like LOCAL:REMOTE or REMOTE", param, ctx)
        return Forward(int(local), remote)


@click.command("port-forward")
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@click.argument("forwards", type=ForwardType(), nargs=-1, required=True, metavar="[LOCAL:]REMOTE...")
@click.option("--address", default="127.0.0.1", metavar="IP", help="Listen there. [default: 127.0.0.1]")
@project_option
def port_forward(target: Target, forwards: tuple[Forward, ...], address: str, project: str) -> None:
    """Forward ports of this machine to ports of a running instance, until Ctrl-C.

    REMOTE is the name of a port in the document of the workload, or the number that the instance was given. Each
    connection goes to that port on the loopback of its node. LOCAL 0, or a name alone: any free port.

    Examples:
      roost port-forward web 8080:http             http://127.0.0.1:8080 is the port `http` of web
      roost port-forward web.1 8080:http 9090:metrics
      roost port-forward web http                  any free port here; it is printed

    Exit code: 130 after Ctrl-C.
    Next: `roost show NAME` lists its ports.
    """
    found = in_project(target, project)
    with connect() as client, ExitStack() as stack:
        try:
            index = running_index(client.tunnels, found.project, found.name) if found.index is None else found.index
        except ValueError as error:
            raise Failure(str(error), exit_code=USAGE) from None
        for forward in forwards:  # whether it is there; a wrong name is no matter of the first connection
            client.tunnels.port(found.project, found.name, forward.remote, index=index).close()
        slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        for forward in forwards:
            listener = stack.enter_context(_listen(address, forward.local))
            here = listener.getsockname()
            echo_err(f"{here[0]}:{here[1]} is {forward.remote} of {found}")
            work = (listener, Target(found.project, found.name, index), forward.remote, slots)
            threading.Thread(target=_accept, args=work, daemon=True).start()
        with Interrupts(patience=0):
            threading.Event().wait()


def _listen(address: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][0]
        return socket.create_server((address, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Failure(f"cannot listen on {address}:{port}: {error.strerror or error}", exit_code=USAGE) from None


def _accept(listener: socket.socket, target: Target, remote: str, slots: threading.BoundedSemaphore) -> None:
    while True:
        slots.acquire()
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, target, remote, slots), daemon=True).start()


def _serve(connection: socket.socket, target: Target, remote: str, slots: threading.BoundedSemaphore) -> None:
    try:
        with connection, Client(*find_config()) as client:
            tunnel = client.tunnels.port(target.project, target.name, remote, index=target.index)
            with tunnel:
                _pass(connection, tunnel)
            if tunnel.end is not None and tunnel.end.error:
                echo_err(tunnel.end.error)
    except ClientError as error:
        echo_err(str(error))
    finally:
        slots.release()


def _pass(connection: socket.socket, tunnel: Tunnel) -> None:
    threading.Thread(target=_send, args=(connection, tunnel), daemon=True).start()
    with suppress(OSError):
        while (piece := tunnel.read()) is not None:
            kind, data = piece
            if kind is FrameKind.OUTPUT_END:
                connection.shutdown(socket.SHUT_WR)
            else:
                connection.sendall(data)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _send(connection: socket.socket, tunnel: Tunnel) -> None:
    try:
        while data := connection.recv(READ_BYTES):
            if not tunnel.write(data):
                return
        tunnel.end_input()
    except OSError:  # reset: the other side also ends
        tunnel.close()
