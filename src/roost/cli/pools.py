"""roost pools: nodes that belong together, how full they are, and what they have in common."""

from typing import TYPE_CHECKING

import click

from roost.cli.output import amount, plain, print_json, print_table, say
from roost.cli.session import connect, json_option, pairs
from roost.client.errors import ApiError

if TYPE_CHECKING:
    from roost.client.client import Client
    from roost.client.setting_types import Pool

HEADER = ("POOL", "NODES", "STRATEGY", "CPU", "MEMORY", "DISK", "OVERCOMMIT")
COLUMNS = ("cpu_milli", "memory", "disk")
SERVERS_OWN = "default"  # in place of a strategy: the server's
NOT_FOUND = 404


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost pools
  roost pools set ci --strategy best_fit --overcommit cpu=1.5
  roost pools unset ci
\b
Next: `roost nodes` for the machines. A node names its pool itself: `roost agent --pool ci`.
""",
)
@json_option
@click.pass_context
def pools(ctx: click.Context, as_json: bool) -> None:
    """List pools: nodes, what is given away of what may be; set strategy and overcommit."""
    if ctx.invoked_subcommand is not None:
        return
    with connect() as client:
        found = client.pools()
    if as_json:
        print_json(found)
        return
    print_table(HEADER, [_row(pool) for pool in found])
    if not found:
        say("there are no pools; the first node brings one, or `roost pools set NAME`")


@pools.command(
    "set",
    epilog="""\b
Examples:
  roost pools set ci --strategy best_fit        for workloads that name this pool and no strategy
  roost pools set ci --overcommit cpu=1.5       a node of 4 cores may be promised 6
  roost pools set ci --overcommit cpu=1         no more than there is
  roost pools set ci --strategy default         the server's own again
\b
What is not given stays as it is, and so does what runs.
\b
Next: `roost pools`.
""",
)
@click.argument("name", metavar="POOL")
@click.option("--strategy", default=None, help="How nodes of this pool are chosen; default: as the server does.")
@click.option("--overcommit", multiple=True, callback=pairs, metavar="NAME=RATIO",
              help="How often cpu or memory may be promised: cpu=1.5.")  # fmt: skip
@json_option
def set_(name: str, strategy: str | None, overcommit: tuple[str, ...], as_json: bool) -> None:
    """Set strategy and overcommit of a pool."""
    if strategy is None and not overcommit:
        raise click.UsageError("say what to set: --strategy or --overcommit")
    ratios = {each: _ratio(each, value) for each, value in (given.split("=", 1) for given in overcommit)}
    with connect() as client:
        known = _known(client, name)
        ratios = {**(known.overcommit if known else {}), **ratios}
        wanted = strategy if strategy is not None else known.strategy if known else ""
        pool = client.set_pool(
            name,
            strategy="" if wanted == SERVERS_OWN else wanted,
            overcommit=ratios,
        )
    if as_json:
        print_json(pool)
    else:
        say(f"pool {pool.name}: strategy {pool.strategy or SERVERS_OWN}, overcommit {_overcommit(pool)}")


@pools.command(
    epilog="""\b
Examples:
  roost pools unset ci
\b
Next: `roost pools`. Its nodes stay.
"""
)
@click.argument("name", metavar="POOL")
@json_option
def unset(name: str, as_json: bool) -> None:
    """Forget the settings of a pool; its nodes stay."""
    with connect() as client:
        client.unset_pool(name)
    if as_json:
        print_json({"name": name})
    else:
        say(f"pool {name} has the server's strategy and no overcommit")


def _row(pool: "Pool") -> tuple[str, ...]:
    rooms = [(name, pool.resources.get(name)) for name in COLUMNS]
    shown = [f"{amount(name, room.used)}/{amount(name, room.limit)}" if room else "-" for name, room in rooms]
    nodes = str(pool.nodes) if pool.ready == pool.nodes else f"{pool.nodes} ({pool.ready} ready)"
    return pool.name, nodes, pool.strategy or SERVERS_OWN, *shown, _overcommit(pool)


def _overcommit(pool: "Pool") -> str:
    return ", ".join(f"{plain(name)} {ratio:g}" for name, ratio in pool.overcommit.items() if ratio != 1) or "-"


def _ratio(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a ratio like 1.5", param_hint=f"--overcommit {name}") from None


def _known(client: "Client", name: str) -> "Pool | None":
    try:
        return client.pool(name)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None
