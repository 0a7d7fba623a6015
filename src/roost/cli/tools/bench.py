"""roost bench: what Roost costs on this machine, one JSON line per figure."""

import sys
from importlib import import_module

import click
import msgspec

from roost.cli.common.output import Output
from roost.cli.common.session import json_output, showing_group

NAMES = (
    "place", "memory", "durable", "durable_postgres", "durable_etcd", "tasks", "restart", "takeover", "at", "rest",
    "burst", "actions", "controllers", "why_burst", "loop", "files", "logs", "isolation", "containers", "vms",
)  # fmt: skip


@showing_group
def bench() -> None:
    """Measure this Roost on this machine.

    Examples:
      roost bench                    all figures, some minutes
      roost bench run tasks memory   some of them
      roost bench place --nodes 10000 --shapes 50

    Figures with a bound say `ok`; the exit code is 1 when one is missed. Ratios are taken within one run, because
    machines differ and are shared; CPU times are those of whole process trees.
    """
    _measure(NAMES, tiny=False)


@bench.command(help=f"Run some groups of benchmarks: {', '.join(NAMES)}.")
@click.argument("names", nargs=-1, type=click.Choice(NAMES), required=True, metavar="GROUP...")
@click.option(
    "--tiny", is_flag=True, help="A tiny size: the figures mean nothing, it only shows that the benchmark runs."
)
def run(names: tuple[str, ...], tiny: bool) -> None:
    _measure(names, tiny=tiny)


@bench.command()
@click.option("--nodes", type=click.IntRange(1, 200_000), default=5_000, show_default=True)
@click.option("--count", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True)
@click.option("--shapes", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--rules", is_flag=True, help="Half of the asks have affinity rules (near, apart, spread).")
@json_output
def place(nodes: int, count: int, shapes: int, rules: bool) -> Output:
    """Placements per CPU second: all filters active, all nodes considered, each placement seeing those before it."""
    from roost_lab.bench.place import rate

    found = rate(nodes, count, shapes, rules=rules)
    what = "with affinity rules" if rules else "without affinity rules"
    message = f"{found:,.0f} placements per CPU second: {count:,} of {shapes} shapes on {nodes:,} nodes, {what}"
    asked = {"nodes": nodes, "count": count, "shapes": shapes, "rules": rules}
    return Output({"placements_per_cpu_s": round(found, 1), **asked}, lambda: click.echo(message))


def _measure(names: tuple[str, ...], *, tiny: bool) -> None:
    from roost_lab.components import Missing

    from roost.server.observability import logging

    logging.configure("warning")  # parts of a server in this process write logs
    missed = []
    for name in names:
        click.echo(f"measuring {name} ...", err=True)
        try:
            group = import_module(f"roost_lab.bench.{name}")
            figures = group.measure(**(group.TINY if tiny else {}))
        except Missing as error:
            click.echo(f"{name}: {error}", err=True)
            continue
        for figure in figures:
            click.echo(msgspec.json.encode(figure))
            if figure.ok is False and not tiny:
                missed.append(figure.figure)
    if missed:
        click.echo(f"missed: {', '.join(missed)}", err=True)
        sys.exit(1)
