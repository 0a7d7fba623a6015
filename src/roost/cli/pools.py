"""roost pools: nodes that belong together, how full they are, what they have in common, and whether they are well."""

from typing import TYPE_CHECKING, Any

import click

from roost.cli.output import amount, plain, print_json, print_table, say
from roost.cli.session import connect, json_option, pairs
from roost.client.errors import ApiError
from roost.model.units import show_duration

if TYPE_CHECKING:
    from roost.client.client import Client
    from roost.client.setting_types import Pool

HEADER = ("POOL", "STATUS", "NODES", "STRATEGY", "CPU", "MEMORY", "DISK", "OVERCOMMIT")
COLUMNS = ("cpu_milli", "memory", "disk")
FIELDS = ("strategy", "overcommit", "labels", "taints", "zone", "rack", "region", "projects", "when_failed",
          "fallback", "fail_after")  # fmt: skip
GONE = {"move": "moved", "cancel": "cancelled"}
SERVERS_OWN = "default"  # in place of a strategy: the server's
NOT_FOUND = 404


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost pools
  roost pools show ci
  roost pools set ci --strategy best_fit --overcommit cpu=1.5 --label disk=nvme
  roost pools set ci --when-failed move --fallback spare --fail-after 5m
  roost pools fail ci --reason "power is out"      its unfinished work is moved or cancelled
  roost pools drain ci                             nothing new; jobs finish, services move
  roost pools ready ci
  roost pools unset ci
\b
Next: `roost nodes` for the machines. A node names its pool itself: `roost agent --pool ci`.
""",
)
@json_option
@click.pass_context
def pools(ctx: click.Context, as_json: bool) -> None:
    """List pools: nodes, what is given away of what may be; set what they have in common; fail or empty one."""
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
    epilog="""\b
Examples:
  roost pools show ci
  roost pools show ci --json
\b
Next: `roost pools set POOL`.
"""
)
@click.argument("name", metavar="POOL")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show one pool: how it stands, what its nodes have in common, what becomes of work if it fails."""
    with connect() as client:
        pool = client.pool(name)
    if as_json:
        print_json(pool)
        return
    for line in described(pool):
        click.echo(line)


@pools.command(
    "set",
    epilog="""\b
Examples:
  roost pools set ci --strategy best_fit             for workloads that name this pool and no strategy
  roost pools set ci --overcommit cpu=1.5            a node of 4 cores may be promised 6
  roost pools set ci --overcommit cpu=1              no more than there is
  roost pools set gpu --label disk=nvme --taint gpu  of its nodes: labels where they do not say otherwise
  roost pools set gpu --project ml --project vision  nobody else's work goes there
  roost pools set ci --when-failed move --fallback spare --fail-after 5m
  roost pools set ci --clear projects --clear strategy
\b
What is not given stays as it is, and so does what runs. Labels and overcommit are added to those there are; taints
and projects take the place of those there were.
\b
Next: `roost pools show POOL`.
""",
)
@click.argument("name", metavar="POOL")
@click.option("--strategy", default=None, help="How nodes of this pool are chosen; default: as the server does.")
@click.option(
    "--overcommit",
    multiple=True,
    callback=pairs,
    metavar="NAME=RATIO",
    help="How often cpu or memory may be promised: cpu=1.5.",
)
@click.option("--label", "labels", multiple=True, callback=pairs, metavar="NAME=VALUE", help="A label of its nodes.")
@click.option(
    "--taint", "taints", multiple=True, metavar="TAINT", help="Who tolerates it may come; K:soft: rather not."
)
@click.option("--zone", default=None, help="Where its nodes are, if they do not say.")
@click.option("--rack", default=None, help="Where its nodes are, if they do not say.")
@click.option("--region", default=None, help="Where its nodes are, if they do not say.")
@click.option("--project", "projects", multiple=True, metavar="PROJECT", help="Who may use it. [default: everybody]")
@click.option("--when-failed", default=None, metavar="move|cancel", help="What becomes of unfinished work if it fails.")
@click.option("--fallback", default=None, metavar="POOL", help="The pool that takes what asked for it, if it fails.")
@click.option(
    "--fail-after",
    default=None,
    metavar="DURATION",
    help="Without a node in touch for so long, it has failed. [default: only if an operator says so]",
)
@click.option(
    "--clear",
    "cleared",
    multiple=True,
    type=click.Choice(FIELDS),
    metavar="FIELD",
    help=f"Back to the default: {', '.join(FIELDS)}.",
)
@json_option
def set_(name: str, cleared: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Set what the nodes of a pool have in common, and what becomes of work if it fails."""
    wanted = {field: value for field, value in given.items() if value not in (None, ())}
    if not wanted and not cleared:
        raise click.UsageError("say what to set: --strategy, --overcommit, --label, ...; --help names all")
    if "overcommit" in wanted:
        wanted["overcommit"] = {each: _ratio(each, value) for each, value in _pairs(wanted["overcommit"])}
    if "labels" in wanted:
        wanted["labels"] = dict(_pairs(wanted["labels"]))
    if wanted.get("strategy") == SERVERS_OWN:
        wanted["strategy"] = ""
    with connect() as client:
        fields = {each: value for each, value in _fields(_known(client, name)).items() if each not in cleared}
        for added in ("overcommit", "labels"):
            if added in wanted:
                wanted[added] = {**fields.get(added, {}), **wanted[added]}
        pool = client.set_pool(name, **{**fields, **wanted})
    if as_json:
        print_json(pool)
    else:
        say(f"pool {pool.name}: strategy {pool.strategy or SERVERS_OWN}, overcommit {_overcommit(pool)}")


@pools.command(
    epilog="""\b
Examples:
  roost pools fail ci --reason "power is out"
\b
Nothing new goes there. What runs there or waits only for it is moved or cancelled, as `--when-failed` says: what waits
goes to its fallback if it has one, else it waits. Work on nodes out of touch moves when their leases have ended.
\b
Next: `roost pools ready POOL` when it is well again.
"""
)
@click.argument("name", metavar="POOL")
@click.option("--reason", required=True, help="Why: everything that is moved or cancelled is told.")
@json_option
def fail(name: str, reason: str, as_json: bool) -> None:
    """Say that a pool has failed: its unfinished work is moved or cancelled."""
    _mark(name, "failed", reason, as_json)


@pools.command(
    epilog="""\b
Examples:
  roost pools drain old --reason "to be sold"
\b
Next: `roost pools show POOL`; `roost pools ready POOL` to take it back.
"""
)
@click.argument("name", metavar="POOL")
@click.option("--reason", default="", help="Why.")
@json_option
def drain(name: str, reason: str, as_json: bool) -> None:
    """Empty a pool: nothing new goes there, jobs finish, services move within their limits."""
    _mark(name, "draining", reason, as_json)


@pools.command(
    epilog="""\b
Examples:
  roost pools ready ci
\b
Next: `roost pools`.
"""
)
@click.argument("name", metavar="POOL")
@json_option
def ready(name: str, as_json: bool) -> None:
    """Say that a pool that failed or was being emptied is well: new work goes there again."""
    _mark(name, "ready", "", as_json)


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
        say(f"nothing is set for pool {name} any more; its nodes stay")


def _row(pool: "Pool") -> tuple[str, ...]:
    rooms = [(name, pool.resources.get(name)) for name in COLUMNS]
    shown = [f"{amount(name, room.used)}/{amount(name, room.limit)}" if room else "-" for name, room in rooms]
    nodes = str(pool.nodes) if pool.ready == pool.nodes else f"{pool.nodes} ({pool.ready} ready)"
    return pool.name, pool.status, nodes, pool.strategy or SERVERS_OWN, *shown, _overcommit(pool)


def described(pool: "Pool") -> list[str]:
    """A pool, line by line."""
    by = f" (by {pool.failed_by})" if pool.failed_by and pool.status == "failed" else ""
    lines = [f"Pool:        {pool.name}", f"Status:      {pool.status}{by}{f': {pool.reason}' if pool.reason else ''}"]
    lines.append(f"Nodes:       {pool.nodes}, {pool.ready} ready")
    lines.append(f"Strategy:    {pool.strategy or SERVERS_OWN}; overcommit {_overcommit(pool)}")
    labels = ", ".join(f"{name}={value}" for name, value in sorted(pool.labels.items()))
    where = ", ".join(f"{word} {value}" for word in ("zone", "rack", "region") if (value := getattr(pool, word)))
    projects = ", ".join(pool.projects) or ("other projects only" if pool.restricted else "everybody")
    for word, told in (("Labels", labels), ("Taints", ", ".join(pool.taints)), ("Where", where)):
        if told:
            lines.append(f"{word + ':':<13}{told}")
    lines.append(f"For:         {projects}")
    instead = f"; pool {pool.fallback} takes what asks for it" if pool.fallback else ""
    silence = f"; it fails if no node is in touch for {show_duration(pool.fail_after_ms)}" if pool.fail_after_ms else ""
    lines.append(f"If it fails: unfinished work is {GONE[pool.when_failed]}{instead}{silence}")
    for name, room in pool.resources.items():
        lines.append(f"{plain(name) + ':':<13}{amount(name, room.used)} of {amount(name, room.limit)} given away")
    return lines


def _mark(name: str, status: str, reason: str, as_json: bool) -> None:
    with connect() as client:
        pool = client.mark_pool(name, status, reason)
    if as_json:
        print_json(pool)
    else:
        stands = "has failed" if pool.status == "failed" else f"is {pool.status}"
        say(f"pool {pool.name} {stands}" + (f": {pool.reason}" if pool.reason else ""))


def _pairs(given: tuple[str, ...]) -> list[list[str]]:
    return [each.split("=", 1) for each in given]


def _fields(pool: "Pool | None") -> dict[str, Any]:
    """What is set for a pool."""
    if pool is None:
        return {}
    fields = {each: getattr(pool, each) for each in FIELDS if each != "fail_after"}
    return fields | {"fail_after": pool.fail_after_ms / 1_000 if pool.fail_after_ms else None}


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
