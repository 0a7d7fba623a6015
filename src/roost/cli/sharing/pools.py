"""roost pools: groups of nodes: allocation, settings and status."""

from typing import Any

import click

from roost.cli.common.format import amount, ordered, plain
from roost.cli.common.options import pairs_option
from roost.cli.common.output import Output, listed, print_fields
from roost.cli.common.session import client_output, connect, deletion, existing, json_output, listing
from roost.client import Client
from roost.model.spec.units import show_duration
from roost.schema.pools import PoolView

HEADER = ("POOL", "STATUS", "NODES", "STRATEGY", "CPU", "MEMORY", "DISK", "OVERCOMMIT")
COLUMNS = ("cpu_milli", "memory", "disk")
FIELDS = ("strategy", "overcommit", "labels", "taints", "zone", "rack", "region", "projects", "when_failed",
          "fallback", "fail_after")  # fmt: skip
GONE = {"move": "moved", "cancel": "cancelled"}
SERVERS_OWN = "default"  # in place of a strategy: the server's


@listing("pools")
@client_output
def pools(client: Client) -> Output:
    """List pools with nodes and allocation; set them; mark one as failed or drain it.

    Examples:
      roost pools
      roost pools show ci
      roost pools set ci --strategy best_fit --overcommit cpu=1.5 --label disk=nvme
      roost pools set ci --when-failed move --fallback spare --fail-after 5m
      roost pools mark ci failed --reason "power is out"      its unfinished work is moved or cancelled
      roost pools mark ci ready
      roost pools drain ci                                    no new work; jobs finish, services move
      roost pools unset ci

    Next: `roost nodes` for the machines. A node names its pool itself: `roost agent --pool ci`.
    """
    found = client.pools.list()
    return listed(found, HEADER, _row, "there are no pools; the first node brings one, or `roost pools set NAME`")


@pools.command()
@click.argument("name", metavar="POOL")
@client_output
def show(client: Client, name: str) -> Output:
    """Show one pool: status, settings, allocation.

    Examples:
      roost pools show ci
      roost pools show ci --json

    Next: `roost pools set POOL`.
    """
    pool = client.pools.get(name)
    return Output(pool, lambda: print_fields(_fields_shown(pool), 13))


@pools.command("set")
@click.argument("name", metavar="POOL")
@click.option("--strategy", default=None, help="Placement strategy. [default: the server's]")
@pairs_option("--overcommit", metavar="NAME=RATIO", help="Overcommit ratio of cpu or memory: cpu=1.5.")
@pairs_option("--label", "labels", metavar="NAME=VALUE", help="Label of its nodes.")
@click.option(
    "--taint", "taints", multiple=True, metavar="TAINT", help="Taint of its nodes; `:soft` means prefer other nodes."
)
@click.option("--zone", default=None, help="Default for its nodes.")
@click.option("--rack", default=None, help="Default for its nodes.")
@click.option("--region", default=None, help="Default for its nodes.")
@click.option("--project", "projects", multiple=True, metavar="PROJECT",
              help="Projects that may use it; repeatable. [default: all]")  # fmt: skip
@click.option("--when-failed", default=None, metavar="move|cancel", help="What happens to unfinished work if it fails.")
@click.option("--fallback", default=None, metavar="POOL", help="Pool that takes its work if it fails.")
@click.option("--fail-after", default=None, metavar="DURATION",
              help="Mark it as failed after this long without a connected node. [default: never]")  # fmt: skip
@click.option("--clear", "cleared", multiple=True, type=click.Choice(FIELDS), metavar="FIELD",
              help=f"Reset to the default: {', '.join(FIELDS)}.")  # fmt: skip
@json_output
def set_(name: str, cleared: tuple[str, ...], **given: Any) -> Output:
    """Set strategy, labels, taints and failover of a pool.

    Examples:
      roost pools set ci --strategy best_fit             for workloads that name this pool and no strategy
      roost pools set ci --overcommit cpu=1.5            a node of 4 cores may allocate 6
      roost pools set ci --overcommit cpu=1              no overcommit
      roost pools set gpu --label disk=nvme --taint gpu  defaults of its nodes
      roost pools set gpu --project ml --project vision  only for these projects
      roost pools set ci --when-failed move --fallback spare --fail-after 5m
      roost pools set ci --clear projects --clear strategy

    Other settings and running work stay. Labels and overcommit are merged; taints
    and projects are replaced.

    Next: `roost pools show POOL`.
    """
    wanted = {field: value for field, value in given.items() if value not in (None, (), {})}
    if not wanted and not cleared:
        raise click.UsageError("nothing to set: give --strategy, --overcommit, --label, ...; --help names all")
    if "overcommit" in wanted:
        wanted["overcommit"] = {pair: _ratio(pair, value) for pair, value in wanted["overcommit"].items()}
    if wanted.get("strategy") == SERVERS_OWN:
        wanted["strategy"] = ""
    with connect() as client:
        known = existing(lambda: client.pools.get(name))
        fields: dict[str, Any] = {}
        if known is not None:
            fields = {field: getattr(known, field) for field in FIELDS if field not in ("fail_after", *cleared)}
            if known.fail_after_ms and "fail_after" not in cleared:
                fields["fail_after"] = known.fail_after_ms / 1_000
        for merged in ("overcommit", "labels"):
            if merged in wanted:
                wanted[merged] = fields.get(merged, {}) | wanted[merged]
        pool = client.pools.set(name, **(fields | wanted))
    settings = {name: value for name, value in _settings_shown(pool).items() if value}
    return Output(pool, f"pool {pool.name}: " + "; ".join(f"{name.lower()} {settings[name]}" for name in settings))


@pools.command()
@click.argument("name", metavar="POOL")
@click.argument("status", type=click.Choice(["failed", "ready"]))
@click.option("--reason", default="", help="Reason, recorded with the work that is moved or cancelled.")
@json_output
def mark(name: str, status: str, reason: str) -> Output:
    """Mark a pool as failed, or as ready again after a failure or a drain.

    Examples:
      roost pools mark ci failed --reason "power is out"
      roost pools mark ci ready

    A failed pool takes no new work. Work that runs there or is pending only for it is moved or cancelled, by
    `--when-failed`. Pending work goes to the fallback, or stays pending. Work on disconnected nodes moves after their
    leases. A ready pool takes new work again.

    Next: `roost pools show POOL`; `roost pools mark POOL ready` when it works again.
    """
    if status == "failed" and not reason:
        raise click.UsageError("a failed pool needs a reason: --reason TEXT")
    with connect() as client:
        return _marked(client.pools.mark(name, status, reason))


@pools.command()
@click.argument("name", metavar="POOL")
@click.option("--reason", default="", help="Reason.")
@client_output
def drain(client: Client, name: str, reason: str) -> Output:
    """Drain a pool: no new work, jobs finish, services move within their limits.

    Examples:
      roost pools drain old --reason "to be sold"

    Next: `roost pools show POOL`; `roost pools mark POOL ready` to take it back.
    """
    return _marked(client.pools.mark(name, "draining", reason))


deletion(
    pools, "unset", "POOL", "pools", "Remove the settings of a pool; its nodes stay.",
    example="ci", done="the settings of pool {} are removed; its nodes stay",
    then="`roost pools`. Its nodes stay.",
)  # fmt: skip


def _row(pool: PoolView) -> tuple[str, ...]:
    rooms = [(name, pool.resources.get(name)) for name in COLUMNS]
    shown = [f"{amount(name, room.used)}/{amount(name, room.limit)}" if room else "-" for name, room in rooms]
    nodes = str(pool.nodes) if pool.ready == pool.nodes else f"{pool.nodes} ({pool.ready} ready)"
    return pool.name, pool.status, nodes, pool.strategy or SERVERS_OWN, *shown, _overcommit(pool)


def _fields_shown(pool: PoolView) -> dict[str, str]:
    by = f" (by {pool.failed_by})" if pool.failed_by and pool.status == "failed" else ""
    return {
        "Pool": pool.name,
        "Status": f"{pool.status}{by}{f': {pool.reason}' if pool.reason else ''}",
        "Nodes": f"{pool.nodes}, {pool.ready} ready",
        **_settings_shown(pool),
        **{plain(name): f"{amount(name, room.used)} of {amount(name, room.limit)} allocated"
           for name, room in ordered(pool.resources)},
    }  # fmt: skip


def _settings_shown(pool: PoolView) -> dict[str, str]:
    fallback = f"; its work goes to pool {pool.fallback}" if pool.fallback else ""
    silence = show_duration(pool.fail_after_ms) if pool.fail_after_ms else ""
    places = ", ".join(f"{kind} {value}" for kind in ("zone", "rack", "region") if (value := getattr(pool, kind)))
    return {
        "Strategy": f"{pool.strategy or SERVERS_OWN}; overcommit {_overcommit(pool)}",
        "Labels": ", ".join(f"{name}={value}" for name, value in sorted(pool.labels.items())),
        "Taints": ", ".join(pool.taints),
        "Where": places,
        "For": ", ".join(pool.projects) or ("other projects only" if pool.restricted else "all projects"),
        "If it fails": f"unfinished work is {GONE[pool.when_failed]}{fallback}"
                       + (f"; it is marked failed after {silence} without a connected node" if silence else ""),
    }  # fmt: skip


def _marked(pool: PoolView) -> Output:
    status = "has failed" if pool.status == "failed" else f"is {pool.status}"
    return Output(pool, f"pool {pool.name} {status}" + (f": {pool.reason}" if pool.reason else ""))


def _overcommit(pool: PoolView) -> str:
    return ", ".join(f"{plain(name)} {ratio:g}" for name, ratio in pool.overcommit.items() if ratio != 1) or "-"


def _ratio(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a ratio like 1.5", param_hint=f"--overcommit {name}") from None
