"""roost agent: make this machine a node. The process becomes the keeper, which starts the agent and all work."""

import os
import socket
from pathlib import Path

import click

from roost.cli.keepers import agent_argv, keeper_argv
from roost.cli.outcome import Failure
from roost.cli.output import say
from roost.cli.places import data_home
from roost.cli.session import pairs


@click.command(
    epilog="""\b
Examples:
  roost agent --join roost-join-...            the first time; `roost join-tokens create` prints the token
  roost agent                                  after that
  roost agent --join @token --name gpu-1 --taint gpu --label disk=nvme --zone a
\b
Next: `roost nodes` on any machine with a client.toml shows the new node.
"""
)
@click.option(
    "--join", default="", envvar="ROOST_JOIN", metavar="TOKEN", show_envvar=True,
    help="Join with this token, or with the one in a file: @FILE. Not used once this machine has joined.",
)  # fmt: skip
@click.option(
    "--server",
    default="",
    metavar="HOST:PORT",
    help="Where the server listens for agents. [default: as told at joining]",
)
@click.option("--name", default=socket.gethostname, show_default="host name", help="The node's name.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="For work and logs. [default: user data/agent]"
)
@click.option("--label", "labels", multiple=True, callback=pairs, metavar="K=V", help="For rules; may be repeated.")
@click.option("--zone", default="", help="Where the machine stands.")
@click.option("--rack", default="", help="Where in the zone.")
@click.option("--region", default="", help="Where the zone is.")
@click.option(
    "--address", default="", metavar="HOST",
    help="Where others reach what listens here. [default: its IP address on the way to the server]",
)  # fmt: skip
@click.option("--pool", default="", help="The pool it belongs to, if its join token does not say.")
@click.option("--cpu", default="", help="Cores to offer, like 4 or 500m. [default: all]")
@click.option("--memory", default="", help="Memory to offer, like 8GiB. [default: all]")
@click.option("--disk", default="", help="Disk to offer, like 100GiB. [default: what is free in --dir]")
@click.option("--gpu", default="", help="GPUs to offer. [default: all of NVIDIA's]")
@click.option("--gpu-model", "gpu_model", default="", help="What they are. [default: as their driver says]")
@click.option(
    "--taint", "taints", multiple=True, metavar="KEY[=VALUE][:soft]", help="Only who tolerates it comes here."
)
@click.option("--resource", "resources", multiple=True, callback=pairs, metavar="K=N", help="Other things to count.")
def agent(
    join: str, server: str, name: str, directory: Path | None, labels: tuple[str, ...], resources: tuple[str, ...],
    taints: tuple[str, ...], **facts: str,
) -> None:  # fmt: skip
    """Make this machine a node of a server.

    The agent's keeper stays in the foreground: it is the parent of all work, and restarts the agent when that dies.
    Ctrl-C or SIGTERM stops the work, then the agent.
    """
    from roost.agent.config import read_options  # noqa: PLC0415  (not for `--help`)

    home = (directory or data_home() / "agent").absolute()
    options = ["--server", server] if server else []
    options += ["--name", name, "--dir", str(home)]
    for option, value in facts.items():
        options += [f"--{option.replace('_', '-')}", value] if value else []
    for option, values in (("--label", labels), ("--resource", resources), ("--taint", taints)):
        options += [word for value in values for word in (option, value)]
    read_options(options, dict(os.environ))  # a keeper would start an agent that cannot be again and again
    _become_node(home, name, join)
    os.environ.pop("ROOST_JOIN", None)  # work must not see it
    argv = keeper_argv(home, agent_argv(*options))
    os.execv(argv[0], argv)


def _become_node(home: Path, name: str, join: str) -> None:
    """See to it that this machine has a certificate that is good for something."""
    from roost.agent.identity import Identity, check_own, now_ms  # noqa: PLC0415
    from roost.model.joining import read_token  # noqa: PLC0415

    identity = Identity(str(home))
    try:
        bundle = identity.read()
    except ValueError as error:
        raise Failure(
            f"{identity.path} cannot be read: {error}", "remove it and join again with --join TOKEN"
        ) from None
    if bundle is not None and (bundle.expires_ms > now_ms() or not join):
        check_own(bundle, name)
        if bundle.expires_ms <= now_ms():
            hint = "make a token with `roost join-tokens create` and start once with --join TOKEN"
            raise Failure(f"the certificate of node {name} has ended", hint)
        return
    if not join:
        hint = "make a token with `roost join-tokens create` where you have a client.toml, and add --join TOKEN"
        raise Failure(f"this machine has not joined a server: there is no certificate in {home}", hint)
    token = read_token(_text(join))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    from roost.agent.joining import Refused, Unreachable  # noqa: PLC0415  (once in the life of a node)
    from roost.agent.joining import join as ask

    try:
        ask(identity, token, name)
    except Refused as error:
        raise Failure(f"not joined: {error}") from None
    except Unreachable as error:
        raise Failure(f"not joined: {error}", "is the server running, and can this machine reach it?") from None
    say(f"joined as {name}")


def _text(join: str) -> str:
    if not join.startswith("@"):
        return join
    try:
        return Path(join[1:]).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"--join: {join[1:]} cannot be read: {getattr(error, 'strerror', None) or error}") from None
