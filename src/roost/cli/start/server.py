"""roost server: only the server, with a flag for everything an operator can choose."""

import os
from pathlib import Path

import click

from roost.cli.common.exit_codes import USAGE, Failure
from roost.cli.start.datadir import DataDir
from roost.cli.start.options import ListenAddress, client_config, server_options
from roost.client.config import data_home
from roost.model.errors import Invalid


@click.command()
@server_options
@click.pass_context
def server(
    ctx: click.Context, data: Path | None, listen: ListenAddress, agents_listen: ListenAddress | None,
    **given: str | int | bool | Path | tuple[str | Path, ...] | None,
) -> None:  # fmt: skip
    """Start only the server.

    The root token comes from $ROOST_TOKEN, or is created on first use in the data directory (admin.token). Every
    option can be set by an environment variable.

    Examples:
      roost server --listen 0.0.0.0:8420
      roost server --data /var/lib/roost --strategy best_fit --log-format json
      ROOST_TOKEN=... roost server --store memory
      roost server --store postgresql://roost@db/roost --name s1 --advertise s1.example.org --key-file cluster.key

    Next: export ROOST_CONFIG=DATA/client.toml, then `roost join-tokens create` and
    `roost agent --join TOKEN` on every node.
    """
    from roost.client.config import write_config
    from roost.server.app import run
    from roost.server.config import ServerConfig, check_config, from_environment
    from roost.server.plugins import load_plugins

    home = DataDir(data or data_home())
    answer = from_environment(os.environ)
    agents = agents_listen or ListenAddress(listen.host, listen.port + 1 if listen.port else 0)
    config = ServerConfig(
        data=home.path, host=listen.host, port=listen.port, agents_host=agents.host, agents_port=agents.port,
        admin_token=answer.get("admin_token") or home.admin_token(),
        **{name: value for name, value in given.items() if value not in (None, "")},  # type: ignore[arg-type]
    )  # fmt: skip
    try:
        load_plugins()
        check_config(config)
    except Invalid as error:
        raise Failure(str(error), exit_code=USAGE) from None

    def ready(port: int, agents_port: int) -> None:
        answer = client_config(config, home, str(listen.reachable(port)))
        write_config(home.client_config_path, answer)
        click.echo(f"Roost serves at {answer.url}; agents connect to port {agents_port}")
        click.echo(f"  export ROOST_CONFIG={home.client_config_path}")

    ctx.exit(run(config, ready))
