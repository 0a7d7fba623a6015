"""roost server: only the server, with a flag for everything an operator can choose."""

import os
from pathlib import Path

import click

from roost.cli.certificates import certificate_options, client_config
from roost.cli.controller_options import controller_options
from roost.cli.datadir import DataDir
from roost.cli.hook_options import hook_options
from roost.cli.outcome import USAGE, Failure
from roost.cli.places import data_home
from roost.cli.session import history_options, oidc_options, patience_option, preempt_margin_option, record_options
from roost.cli.team import team_options
from roost.cli.up import ADDRESS, LISTEN, Address
from roost.model.errors import Invalid


@click.command(
    epilog="""\b
Examples:
  roost server --listen 0.0.0.0:8420
  roost server --data /var/lib/roost --strategy best_fit --log-form json
  ROOST_TOKEN=... roost server --store memory
  roost server --store postgresql://roost@db/roost --name s1 --advertise s1.example.org --key-file cluster.key
\b
Next: export ROOST_CONFIG=DATA/client.toml for the commands, then `roost join-tokens create` and
`roost agent --join TOKEN` on every machine that is to run work.
"""
)
@click.option("--data", type=click.Path(path_type=Path), envvar="ROOST_DATA", help="Where everything is kept.")
@click.option("--store", default="sqlite", envvar="ROOST_STORE", metavar="STORE", show_default=True,
              help="sqlite, memory (nothing is kept), postgresql://... or etcd://... (shared by servers).")  # fmt: skip
@team_options
@click.option("--listen", type=ADDRESS, default=LISTEN, envvar="ROOST_LISTEN", show_default=True, help="For the API.")
@click.option(
    "--agents-listen", type=ADDRESS, envvar="ROOST_AGENTS_LISTEN", help="For agents. [default: the next port]"
)
@click.option(
    "--strategy", default="", envvar="SCHEDULING_STRATEGY", help="How nodes are chosen. [default: least_loaded]"
)
@click.option(
    "--lease", "lease_ms", type=int, envvar="ROOST_LEASE_MS", metavar="MS", help="After this silence a node is lost."
)
@patience_option
@preempt_margin_option
@record_options
@history_options
@certificate_options
@oidc_options
@hook_options
@controller_options(ADDRESS)
@click.option("--seed", type=int, default=0, envvar="ROOST_SEED", help="For strategies that leave something to chance.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              envvar="ROOST_LOG_LEVEL", show_default=True, help="How much to tell.")  # fmt: skip
@click.option("--log-form", type=click.Choice(["auto", "json", "words"]), default="auto", envvar="ROOST_LOG_FORM",
              show_default=True, help="auto: words for a terminal, JSON otherwise.")  # fmt: skip
@click.pass_context
def server(
    ctx: click.Context,
    data: Path | None,
    listen: Address,
    agents_listen: Address | None,
    **given: str | int | bool | Path | tuple[str | Path, ...] | None,
) -> None:
    """Start only the server.

    The token of the API comes from $ROOST_TOKEN, or is made on first use and kept in the data directory (admin.token).
    Every option can be set by an environment variable, too.
    """
    from roost.client.config import write_config  # noqa: PLC0415
    from roost.server.app import run  # noqa: PLC0415  (heavy: not for `--help`)
    from roost.server.config import ServerConfig, check_config, from_environment  # noqa: PLC0415
    from roost.server.plugins import load_plugins  # noqa: PLC0415

    home = DataDir(data or data_home())
    told = from_environment(os.environ)
    agents = agents_listen or Address(listen.host, listen.port + 1 if listen.port else 0)
    config = ServerConfig(
        data=home.path,
        host=listen.host,
        port=listen.port,
        agents_host=agents.host,
        agents_port=agents.port,
        admin_token=told.get("admin_token") or home.admin_token(),
        **{name: value for name, value in given.items() if value not in (None, "")},  # type: ignore[arg-type]
    )
    try:
        load_plugins()
        check_config(config)
    except Invalid as error:
        raise Failure(str(error), exit_code=USAGE) from None

    def ready(port: int, agents_port: int) -> None:
        told = client_config(config, home, str(listen.reachable(port)))
        write_config(home.client_config_path, told)
        click.echo(f"Roost serves at {told.url}; agents connect to port {agents_port}")
        click.echo(f"  export ROOST_CONFIG={home.client_config_path}")

    ctx.exit(run(config, ready))
