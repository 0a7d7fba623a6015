"""roost up: a server and local nodes in one command, and nothing left when it ends."""

import gc
import os
import random
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import click

from roost.cli.certificates import certificate_options, client_config
from roost.cli.controller_options import controller_options
from roost.cli.datadir import DataDir
from roost.cli.hook_options import hook_options
from roost.cli.keepers import Keeper, agent_argv, end_strangers, start_keeper
from roost.cli.outcome import Failure
from roost.cli.output import say
from roost.cli.places import data_home
from roost.cli.session import history_options, patience_option, preempt_margin_option, record_options

if TYPE_CHECKING:
    from roost.server.certificates import Certificates
    from roost.server.config import ServerConfig

LISTEN = "127.0.0.1:8420"  # as in server/config.py, which is too heavy to import before the agents have been started
AGENTS_MAX = 64  # local nodes are for trying things out; each is two processes
QUIET_PORTS = range(20_000, 32_000)  # below those the kernel gives to connections: free now is free in a second
QUIET_PORTS_TRIED = 50
END_S_MAX = 20.0  # keepers give work 5 s and their agent 3 s to end; who takes longer is killed


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def reachable(self, port: int = 0) -> "Address":
        """The same from this machine: nobody can connect to "all addresses"."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(self.host, self.host)
        return Address(host, port or self.port)


class AddressType(click.ParamType[Address]):
    """HOST:PORT, or a port alone."""

    name = "HOST:PORT"

    def convert(self, value: str | Address, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        host, _, port = value.rpartition(":")
        if not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            self.fail(f"{value!r} is not like 127.0.0.1:8420", param, ctx)
        return Address(host.strip("[]") or "127.0.0.1", int(port))


ADDRESS = AddressType()


@click.command(
    epilog="""\b
Examples:
  roost up                              one node, everything in ~/.local/share/roost
  roost up --data ./trial --agents 3    three nodes, each with a third of this machine
  roost up --listen 0.0.0.0:8420 --agents-listen 0.0.0.0:8421      for other machines, too
\b
Next, in another terminal: export ROOST_CONFIG=DIR/client.toml, then `roost run -- echo hello`.
"""
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Where everything is kept. [default: ~/.local/share/roost]"
)
@click.option("--listen", type=ADDRESS, default=LISTEN, show_default=True, help="Where the API listens; port 0: any.")
@click.option("--agents-listen", type=ADDRESS, help="Where the server listens for agents. [default: the next port]")
@click.option(
    "--agents", type=click.IntRange(0, AGENTS_MAX), default=1, show_default=True, help="Local nodes, node-1 to node-N."
)
@click.option("--strategy", default="", help="How nodes are chosen. [default: $SCHEDULING_STRATEGY or least_loaded]")
@click.option("--gpu", default="", help="GPUs each node offers. [default: node-1 all of NVIDIA's]")
@click.option("--gpu-model", default="", help="What they are. [default: as their driver says]")
@click.option(
    "--taint", "taints", multiple=True, metavar="KEY[=VALUE][:soft]", help="Only who tolerates it comes here."
)
@click.option("--lease", "lease_ms", type=int, default=None, metavar="MS", help="After this silence a node is lost.")
@patience_option
@preempt_margin_option
@record_options
@history_options
@certificate_options
@hook_options
@controller_options(ADDRESS)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", help="How much to tell."
)
def up(
    data: Path | None, listen: Address, agents_listen: Address | None, agents: int, strategy: str, lease_ms: int | None,
    log_level: str, gpu: str, gpu_model: str, taints: tuple[str, ...],
    **more: int | str | bool | Path | tuple[str | Path, ...] | None,
) -> None:  # fmt: skip
    """Start a server and local nodes: everything in one command.

    It stays in the foreground. Ctrl-C or SIGTERM stops the server, the work and the nodes; what was running then runs
    again after the next `roost up`. Tokens, certificates and data are kept in the data directory.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    home = DataDir(data or data_home())
    listen, agents_listen = _addresses(listen, agents_listen)
    admin_token = home.admin_token()
    keepers: list[Keeper] = []
    offer = _offer(gpu, gpu_model, taints)
    try:
        # First of all the agents: they start while the server is still being imported.
        names = [f"node-{number}" for number in range(1, agents + 1)]
        end_strangers(home.path / "nodes", names)
        for name in names:
            keepers.append(_start(home, name, agents_listen, agents, offer))
        gc.disable()  # importing the server makes no garbage, and looking for it costs a seventh of that time
        config = _config(
            data=home.path, host=listen.host, port=listen.port, agents_host=agents_listen.host,
            agents_port=agents_listen.port, admin_token=admin_token, strategy=strategy, lease_ms=lease_ms,
            log_level=log_level, **more,
        )  # fmt: skip
        _serve(config, home, keepers)
    except KeyboardInterrupt:
        pass
    finally:
        end_keepers(keepers)


def end_keepers(keepers: list[Keeper]) -> None:
    """Ask all of them to end and wait for it. Whoever is in a hurry (a second Ctrl-C) shortens the work's grace."""
    import select  # noqa: PLC0415  (at the end)
    import time  # noqa: PLC0415

    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    left = [keeper for keeper in keepers if keeper.pidfd >= 0]
    for keeper in left:
        keeper.terminate()
    deadline = time.monotonic() + END_S_MAX
    while left:
        try:
            over = select.select([keeper.pidfd for keeper in left], [], [], max(0.0, deadline - time.monotonic()))[0]
        except KeyboardInterrupt:
            for keeper in left:
                keeper.terminate()
            continue
        if not over:
            for keeper in left:
                say(f"{keeper.name} does not end; killed")
                keeper.kill()
            deadline = time.monotonic() + END_S_MAX
            continue
        for keeper in [keeper for keeper in left if keeper.pidfd in over]:
            keeper.reap()
            left.remove(keeper)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _addresses(listen: Address, agents: Address | None) -> tuple[Address, Address]:
    """Both addresses; the agents' with a real port, because agents are started before anybody listens there."""
    if agents is None:
        agents = Address(listen.host, listen.port + 1 if listen.port else 0)
    _check_free(listen, "--listen")
    if agents.port:
        _check_free(agents, "--agents-listen")
        return listen, agents
    for port in random.sample(QUIET_PORTS, QUIET_PORTS_TRIED):
        try:
            _check_free(agents._replace(port=port), "--agents-listen")
        except Failure:
            continue
        return listen, agents._replace(port=port)
    raise Failure(f"found no free port for agents on {agents.host}", "choose one with --agents-listen")


def _check_free(address: Address, option: str) -> None:
    """Better to find out before anything was started."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            hint = f"is another `roost up` running? Choose another address with {option}; port 0 is any free one"
            raise Failure(f"cannot listen on {address}: {error.strerror or error}", hint) from None


def _offer(gpu: str, gpu_model: str, taints: tuple[str, ...]) -> list[str]:
    """What the nodes are to offer, checked: better told now than by the log of an agent that does not come up."""
    offer = [word for taint in taints for word in ("--taint", taint)]
    offer += [
        word for option, value in (("--gpu", gpu), ("--gpu-model", gpu_model)) if value for word in (option, value)
    ]
    if offer:
        from roost.agent.config import check_offer  # noqa: PLC0415  (only if something is said)

        check_offer(offer)
    return offer


def _start(home: DataDir, name: str, server: Address, agents: int, offer: list[str]) -> Keeper:
    directory = home.path / "nodes" / name
    options = ["--server", str(server.reachable()), "--name", name, "--dir", str(directory), *offer]
    if agents > 1:
        options += ["--slice", f"{name.removeprefix('node-')}/{agents}"]
    if agents > len(os.sched_getaffinity(0)):
        options += ["--cpu", "1"]  # a slice of less could not even hold what asks for nothing in particular
    return start_keeper(name, directory, agent_argv(*options))


def _config(**given: object) -> "ServerConfig":
    from roost.server.config import ServerConfig, from_environment  # noqa: PLC0415  (heavy: after the agents)

    settings = {name: value for name, value in given.items() if value not in (None, "")}
    strategy = from_environment(os.environ).get("strategy")
    if strategy:
        settings.setdefault("strategy", strategy)
    return ServerConfig(**settings)  # type: ignore[arg-type]


def _serve(config: "ServerConfig", home: DataDir, keepers: list[Keeper]) -> None:
    """Be the server until a signal comes, and tell of keepers that end before."""
    import asyncio  # noqa: PLC0415  (heavy: after the agents)

    import uvloop  # noqa: PLC0415

    from roost.client.config import write_config  # noqa: PLC0415
    from roost.server.app import CannotStart, serve  # noqa: PLC0415

    def ready(port: int, agents_port: int) -> None:
        gc.enable()
        loop = asyncio.get_running_loop()
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # a closed terminal; nohup ignores it
            loop.add_signal_handler(signal.SIGHUP, os.kill, os.getpid(), signal.SIGTERM)
        for keeper in keepers:
            loop.add_reader(keeper.pidfd, _ended, loop, keeper)
        told = client_config(config, home, str(Address(config.host, port).reachable()))
        write_config(home.client_config_path, told)
        _greet(told.url, home, keepers, agents_port)

    async def enrol(certificates: "Certificates") -> None:
        for keeper in keepers:
            await _enrol(certificates, keeper)

    def _ended(loop: asyncio.AbstractEventLoop, keeper: Keeper) -> None:
        loop.remove_reader(keeper.pidfd)
        how = keeper.reap()
        say(f"the keeper of {keeper.name} has {how}: {keeper.last_words() or 'it said nothing'}")
        say(f"what ran on {keeper.name} moves to other nodes; `roost up` again brings it back")

    try:
        uvloop.run(serve(config, ready, enrol=enrol))
    except CannotStart as error:
        raise Failure(str(error)) from None


async def _enrol(certificates: "Certificates", keeper: Keeper) -> None:
    """See to it that a local node has a certificate. Its agent is being started meanwhile and waits for the file."""
    from roost.agent.identity import Identity, bundle_of, make_request, now_ms  # noqa: PLC0415

    identity = Identity(str(keeper.directory))
    try:
        known = identity.read()
    except ValueError:
        known = None
    if known is not None and certificates.is_current(keeper.name, known.certificate) and now_ms() < known.renew_ms:
        return
    key, request = make_request(keeper.name)
    identity.write(bundle_of(keeper.name, key, await certificates.enrol(keeper.name, request, local=True)))


def _greet(url: str, home: DataDir, keepers: list[Keeper], agents_port: int) -> None:
    nodes = ", ".join(keeper.name for keeper in keepers) or "none yet; `roost agent` adds one"
    click.echo(f"Roost is up at {url} (agents: port {agents_port}; nodes: {nodes})")
    click.echo("Talk to it from another terminal:")
    click.echo(f"  export ROOST_CONFIG={home.client_config_path}")
    click.echo("  roost run -- echo hello")
    click.echo("Ctrl-C stops it.")
    sys.stdout.flush()
