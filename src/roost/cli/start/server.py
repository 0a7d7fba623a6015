"""roost server: only the server, with a flag for everything an operator can choose."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from roost.cli.common.exit_codes import USAGE, Failure
from roost.cli.start.datadir import DataDir
from roost.cli.start.options import ListenAddress, server_options
from roost.client.config import data_home
from roost.model.errors import Invalid


@click.command()
@server_options
def server(data: Path | None, listen: ListenAddress, agents_listen: ListenAddress | None, **given: Any) -> None:
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
    from roost.server.app import run
    from roost.server.config import check_config, from_environment
    from roost.server.plugins import load_plugins

    home = DataDir(data or data_home())
    token = from_environment(os.environ).get("admin_token") or home.admin_token()
    config = home.server_config(listen, agents_listen or listen.next_port(), admin_token=token, **given)
    try:
        load_plugins()
        check_config(config)
    except Invalid as error:
        raise Failure(str(error), exit_code=USAGE) from None

    def ready(port: int, agents_port: int) -> None:
        url = home.write_client_config(config, port)
        click.echo(f"Roost serves at {url}; agents connect to port {agents_port}")
        click.echo(f"  export ROOST_CONFIG={home.client_config_path}")

    sys.exit(run(config, ready))
