"""roost up: a server and local nodes in one command, and nothing left when it ends."""

import errno
import gc
import math
import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.common.interrupts import Interrupts
from roost.cli.common.output import echo_err
from roost.cli.start.datadir import DataDir
from roost.cli.start.keeper_watch import KeeperWatch
from roost.cli.start.local_nodes import (
    KeeperHandle,
    agent_argv,
    end_keepers,
    end_strangers,
    isolation_line,
    start_keeper,
    stop_signals,
)
from roost.cli.start.options import (
    ADDRESS,
    LISTEN,
    RUN_OPTIONS,
    ListenAddress,
    readable_option,
    run_options,
    run_processes_option,
    shared_options,
    taint_option,
    words_of,
)
from roost.client.config import data_home

if TYPE_CHECKING:
    from roost.server.config import ServerConfig
    from roost.server.pki.certificates import Certificates

AGENTS_MAX = 64  # local nodes are for trying things out; each is two processes
QUIET_PORTS = range(18_000, 20_000)  # below those that nodes give to workloads, and the kernel to connections
QUIET_PORTS_TRIED = 50


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Data directory. [default: ~/.local/share/roost]")
@click.option(
    "--listen", type=ADDRESS, default=LISTEN, show_default=True, help="Address of the API; port 0: any free port."
)
@click.option("--agents-listen", type=ADDRESS, help="Address for agents. [default: the next port]")
@click.option(
    "--agents", type=click.IntRange(0, AGENTS_MAX), default=1, show_default=True, help="Local nodes, node-1 to node-N."
)
@click.option("--strategy", default="", help="Placement strategy. [default: $SCHEDULING_STRATEGY or least_loaded]")
@click.option("--gpu", default="", help="GPUs of each node. [default: node-1 has all NVIDIA GPUs]")
@click.option("--gpu-model", default="", help="Model of the GPUs. [default: detected]")
@taint_option
@run_options
@readable_option
@run_processes_option
@click.option(
    "--restart-nodes/--no-restart-nodes", default=True, help="Start local nodes again that die. [default: yes]"
)
@click.option("--lease", "lease_ms", type=int, metavar="MS", help="A node without contact for this long is lost.")
@shared_options
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", help="Log level."
)
def up(
    data: Path | None, listen: ListenAddress, agents_listen: ListenAddress | None, agents: int, strategy: str,
    gpu: str, gpu_model: str, taints: tuple[str, ...], readable: list[str], run_processes: list[str],
    restart_nodes: bool, **given: Any,
) -> None:  # fmt: skip
    """Start a server and local nodes.

    It stays in the foreground. Ctrl-C or SIGTERM stops the server, the work and the nodes; once more makes this faster.
    Interrupted work runs again after the next `roost up`. Tokens, certificates and data are in the data directory.

    Examples:
      roost up                              one node, everything in ~/.local/share/roost
      roost up --data ./trial --agents 3    three nodes, each with a third of this machine
      roost up --listen 0.0.0.0:8420 --agents-listen 0.0.0.0:8421      for other machines as well

    Next, in another terminal: `roost run -- echo hello`; with --data DIR, export ROOST_CONFIG=DIR/client.toml first.
    """
    home = DataDir(data or data_home())
    listen, agents_listen = _addresses(listen, agents_listen)
    admin_token = home.admin_token()
    keepers: list[KeeperHandle] = []
    runs = {name: given.pop(name) for name in RUN_OPTIONS}
    offer = _offer({"gpu": gpu, "gpu_model": gpu_model, "taint": taints, **runs})
    of_runs = [*readable, *run_processes]
    # No signal raises from here on: wherever it came, it could be between the start of a keeper and its end.
    with Interrupts(stop_signals(), patience=math.inf) as interrupts:

        def start(name: str) -> KeeperHandle:
            return _start(home, name, agents_listen, agents, offer, of_runs, interrupts)

        try:
            # First of all the agents: they start while the server is still being imported.
            names = [f"node-{number}" for number in range(1, agents + 1)]
            end_strangers(home.path / "nodes", names, interrupts)
            for name in names:
                keepers.append(start(name))
            gc.disable()  # importing the server makes no garbage, and looking for it costs a seventh of that time
            from roost.server.config import from_environment

            strategy = strategy or from_environment(os.environ).get("strategy", "")
            config = home.server_config(listen, agents_listen, admin_token=admin_token, strategy=strategy, **given)
            isolated = isolation_line(runs["isolation"]) if keepers else ""
            _serve(config, home, keepers, start if restart_nodes else None, isolated, interrupts)
        finally:
            end_keepers(keepers, interrupts)


def _addresses(listen: ListenAddress, agents: ListenAddress | None) -> tuple[ListenAddress, ListenAddress]:
    """Both addresses; the agents' with a real port, because agents start before the server listens."""
    agents = agents or listen.next_port()
    _check_free(listen, "--listen")
    if agents.port:
        _check_free(agents, "--agents-listen")
        return listen, agents
    for port in random.sample(QUIET_PORTS, QUIET_PORTS_TRIED):
        try:
            _check_free(agents._replace(port=port), "--agents-listen")
            _claim(port)
        except (Failure, OSError):
            continue
        return listen, agents._replace(port=port)
    raise Failure(f"found no free port for agents on {agents.host}", "choose one with --agents-listen")


def _claim(port: int) -> None:
    """No other `roost up` chooses it in the second until our server listens. Raises OSError when one has."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    claim.bind(f"\0roost-up-{port}")
    claim.detach()  # open for as long as this process lives


def _check_free(address: ListenAddress, option: str) -> None:
    """Better to find out before anything was started."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            hint = f"is another `roost up` running? Choose another address with {option}; port 0 is any free one"
            if isinstance(error, PermissionError):
                hint = f"ports below 1024 need root; choose a higher port with {option}"
            elif error.errno == errno.EADDRNOTAVAIL:
                hint = f"this machine has no such address; choose another with {option}"
            raise Failure(f"cannot listen on {address}: {error.strerror or error}", hint) from None


def _offer(given: dict[str, str | tuple[str, ...]]) -> list[str]:
    """What the nodes offer, validated here rather than by an agent that fails to start."""
    offer = words_of(given)
    if offer:
        from roost.agent.config import not_offered, read_options

        for problem in not_offered(read_options(["--name", "node-1", *offer], {}).machines):
            echo_err(f"not offered until it is there: {problem}")
    return offer


def _start(
    home: DataDir, name: str, server: ListenAddress, agents: int, offer: list[str], of_runs: list[str],
    interrupts: Interrupts,
) -> KeeperHandle:  # fmt: skip
    directory = home.path / "nodes" / name
    options = ["--server", str(server.reachable()), "--name", name, "--dir", str(directory), *offer]
    if agents > 1:
        options += ["--slice", f"{name.removeprefix('node-')}/{agents}"]
    if agents > len(os.sched_getaffinity(0)):
        options += ["--cpu", "1"]  # a slice of less could not even hold what asks for nothing in particular
    keeper = ["--nodes", str(agents), "--hide", str(home.path), *of_runs]
    return start_keeper(name, directory, agent_argv(*options), keeper, interrupts)


def _serve(
    config: "ServerConfig", home: DataDir, keepers: list[KeeperHandle], start: Callable[[str], KeeperHandle] | None,
    isolated: str, interrupts: Interrupts,
) -> None:  # fmt: skip
    import asyncio

    import uvloop

    from roost.server.app import EXIT_AT_ONCE, CannotStart, serve

    stopping = asyncio.Event()

    def ready(port: int, agents_port: int) -> None:
        gc.enable()
        watch = KeeperWatch(asyncio.get_running_loop(), keepers, start, stopping.is_set)
        for keeper in keepers:
            watch.add(keeper)
        url = home.write_client_config(config, port)
        nodes = ", ".join(keeper.name for keeper in keepers) or "none yet; `roost agent` adds one"
        click.echo(f"Roost is up at {url} (agents: port {agents_port}; nodes: {nodes})")
        click.echo("Talk to it from another terminal:")
        if home.path != data_home():
            click.echo(f"  export ROOST_CONFIG={home.client_config_path}")
        click.echo("  roost run -- echo hello")
        if keepers:
            click.echo(isolated)
        click.echo("Ctrl-C stops it.")

    async def enrol(certificates: "Certificates") -> None:
        for keeper in keepers:
            await _enrol(certificates, keeper)

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            """In order; the second time without the rest of the server's end, but not without that of the nodes."""
            stopping.set()
            if interrupts.count > 1:
                end_keepers(keepers, interrupts)
                os._exit(EXIT_AT_ONCE)

        def heard() -> None:
            with suppress(RuntimeError):  # the loop is closed: all that is left is to end the nodes
                loop.call_soon_threadsafe(stop)

        interrupts.heard = heard
        if interrupts.count:
            stopping.set()
        await serve(config, ready, stopping, enrol)

    try:
        uvloop.run(run())
    except CannotStart as error:
        raise Failure(str(error)) from None


async def _enrol(certificates: "Certificates", keeper: KeeperHandle) -> None:
    """See to it that a local node has a certificate. Its agent is being started meanwhile and waits for the file."""
    from roost.agent.connection.identity import NodeIdentity, bundle_of, make_request, now_ms

    identity = NodeIdentity(str(keeper.directory))
    try:
        bundle = identity.read()
    except ValueError:
        bundle = None
    if bundle is not None and certificates.is_current(keeper.name, bundle.certificate) and now_ms() < bundle.renew_ms:
        return
    key, request = make_request(keeper.name)
    identity.write(bundle_of(keeper.name, key, await certificates.enrol(keeper.name, request, local=True)))
