"""roost agent: make this machine a node. The process becomes the keeper, which starts the agent and all work."""

import os
import socket
from pathlib import Path

import click

from roost.cli.keepers import agent_argv, keeper_argv
from roost.cli.places import data_home
from roost.cli.session import pairs


@click.command(
    epilog="""\b
Examples:
  roost agent --server roost.example:8421 --token-file agent.token
  roost agent --server 10.0.0.1:8421 --token-file t --name gpu-1 --taint gpu --label disk=nvme --zone a
\b
Next: `roost nodes` on any machine with a client.toml shows the new node.
"""
)
@click.option("--server", required=True, metavar="HOST:PORT", help="Where the server listens for agents.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="The agents' token (the server's DIR/agent.token). [default: $ROOST_AGENT_TOKEN]",
)
@click.option("--name", default=socket.gethostname, show_default="host name", help="The node's name.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="For work and logs. [default: user data/agent]"
)
@click.option("--label", "labels", multiple=True, callback=pairs, metavar="K=V", help="For rules; may be repeated.")
@click.option("--zone", default="", help="Where the machine stands.")
@click.option("--rack", default="", help="Where in the zone.")
@click.option("--region", default="", help="Where the zone is.")
@click.option("--pool", default="", help="The pool it belongs to.")
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
    server: str, token_file: Path | None, name: str, directory: Path | None, labels: tuple[str, ...],
    resources: tuple[str, ...], taints: tuple[str, ...], **facts: str,
) -> None:  # fmt: skip
    """Make this machine a node of a server.

    The agent's keeper stays in the foreground: it is the parent of all work, and restarts the agent when that dies.
    Ctrl-C or SIGTERM stops the work, then the agent.
    """
    from roost.agent.config import read_options  # noqa: PLC0415  (not for `--help`)

    home = (directory or data_home() / "agent").absolute()
    options = ["--server", server, "--name", name, "--dir", str(home)]
    options += ["--token-file", str(token_file.absolute())] if token_file else []
    for option, value in facts.items():
        options += [f"--{option.replace('_', '-')}", value] if value else []
    for option, values in (("--label", labels), ("--resource", resources), ("--taint", taints)):
        options += [word for value in values for word in (option, value)]
    read_options(options, dict(os.environ))  # a keeper would start an agent that cannot be again and again
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    argv = keeper_argv(home, agent_argv(*options))
    os.execv(argv[0], argv)
