"""roost agent: make this machine a node. The process becomes the keeper, which starts the agent and all work."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from roost.cli.common.exit_codes import Failure
from roost.cli.common.options import pairs
from roost.cli.common.output import echo_err
from roost.cli.start.local_nodes import agent_argv, isolation_line, keeper_argv
from roost.cli.start.options import readable_option, run_options, run_processes_option, taint_option, words_of
from roost.client.config import data_home


@click.command()
@click.option(
    "--join", default="", envvar="ROOST_JOIN", metavar="TOKEN", show_envvar=True,
    help="Join token: @FILE, - for standard input, or the token. Ignored after this machine has joined.",
)  # fmt: skip
@click.option(
    "--server", default="", metavar="HOST:PORT", help="Address of the server for agents. [default: from the join token]"
)
@click.option("--name", default=socket.gethostname, show_default="host name", help="The node's name.")
@click.option("--dir", "directory", type=click.Path(path_type=Path),
              help="Directory for work and logs. [default: user data/agent]")  # fmt: skip
@click.option(
    "--label", "labels", multiple=True, callback=pairs, metavar="K=V", help="Label for placement rules; repeatable."
)
@click.option("--zone", default="", help="Zone of the node.")
@click.option("--rack", default="", help="Rack of the node.")
@click.option("--region", default="", help="Region of the node.")
@click.option(
    "--address", default="", metavar="HOST",
    help="Address of services on this node. [default: its IP address on the route to the server]",
)  # fmt: skip
@click.option("--pool", default="", help="Pool of the node, if its join token has none.")
@click.option("--cpu", default="", help="Cores, like 4 or 500m. [default: all]")
@click.option("--memory", default="", help="Memory, like 8GiB. [default: all]")
@click.option("--disk", default="", help="Disk, like 100GiB. [default: free space of --dir]")
@click.option("--input-cache", "input_cache", default="", metavar="SIZE",
              help="Most bytes of inputs that stay on the node for later runs. [default: 10GiB]")  # fmt: skip
@click.option("--gpu", default="", help="GPUs. [default: all NVIDIA GPUs]")
@click.option("--gpu-model", "gpu_model", default="", help="Model of the GPUs. [default: detected]")
@run_options
@readable_option
@run_processes_option
@taint_option
@click.option("--resource", "resources", multiple=True, callback=pairs, metavar="K=N", help="Other countable resource.")
def agent(
    join: str, server: str, name: str, directory: Path | None, labels: tuple[str, ...], resources: tuple[str, ...],
    taints: tuple[str, ...], readable: list[str], run_processes: list[str], **facts: Any,
) -> None:  # fmt: skip
    """Make this machine a node.

    The agent's keeper stays in the foreground: it is the parent of all work, and restarts the agent when it dies.
    Ctrl-C or SIGTERM stops the work, then the agent.

    Examples:
      roost agent --join @token                    the first time; `roost join-tokens create` prints the token
      roost agent                                  after that
      roost agent --join @token --name gpu-1 --taint gpu --label disk=nvme --zone a

    Next: `roost nodes` on any machine with a client.toml shows the new node.
    """
    from roost.agent.config import not_offered, read_options

    home = (directory or data_home() / "agent").absolute()
    options = ["--server", server] if server else []
    options += ["--name", name, "--dir", str(home)]
    options += words_of({**facts, "label": labels, "resource": resources, "taint": taints})
    checked = read_options(options, dict(os.environ))  # a keeper would start an agent that cannot be again and again
    for problem in not_offered(checked.machines):
        echo_err(f"not offered until it is there: {problem}")
    if click.get_current_context().get_parameter_source("join") is ParameterSource.COMMANDLINE and join[:1] not in "@-":
        echo_err("other users of this machine can read the join token in the process list; give --join @FILE, "
                 "--join - (standard input) or ROOST_JOIN")  # fmt: skip
    _become_node(home, name, join)
    os.environ.pop("ROOST_JOIN", None)  # work must not see it
    echo_err(isolation_line(facts["isolation"]))
    argv = keeper_argv(home, agent_argv(*options), *readable, *run_processes)
    os.execv(argv[0], argv)


def _read_join(join: str) -> str:
    if join != "-" and not join.startswith("@"):
        return join
    try:
        return sys.stdin.read() if join == "-" else Path(join[1:]).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"--join: {join[1:]} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _become_node(home: Path, name: str, join: str) -> None:
    from roost.agent.connection.identity import NodeIdentity, check_own, now_ms
    from roost.model.records.enrolment import read_token

    identity = NodeIdentity(str(home))
    try:
        bundle = identity.read()
    except ValueError as error:
        hint = "remove it and join again with --join TOKEN"
        raise Failure(f"{identity.path} cannot be read: {error}", hint) from None
    if bundle is not None and (bundle.expires_ms > now_ms() or not join):
        check_own(bundle, name)
        if bundle.expires_ms <= now_ms():
            hint = "make a token with `roost join-tokens create` and start once with --join TOKEN"
            raise Failure(f"the certificate of node {name} has expired", hint)
        return
    if not join:
        hint = "make a token with `roost join-tokens create` where you have a client.toml, and add --join TOKEN"
        raise Failure(f"this machine has not joined a server: there is no certificate in {home}", hint)
    token = read_token(_read_join(join))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    from roost.agent.connection import enrolment

    try:
        enrolment.join(identity, token, name)
    except enrolment.EnrolmentRefused as error:
        raise Failure(f"not joined: {error}") from None
    except enrolment.EnrolmentUnreachable as error:
        raise Failure(f"not joined: {error}", "is the server running, and can this machine reach it?") from None
    echo_err(f"joined as {name}")
