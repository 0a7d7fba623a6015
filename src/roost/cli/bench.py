"""roost bench: what Roost costs on this machine, one JSON line per figure."""

import sys

import click
import msgspec

NAMES = (
    "place", "memory", "durable", "durable_postgres", "durable_etcd", "tasks", "restart", "takeover", "at", "rest",
    "burst", "actions", "controllers",
)  # fmt: skip


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  roost bench                    all figures, some minutes
  roost bench run tasks memory   some of them
  roost bench place --nodes 10000 --shapes 50
\b
Figures with a bound say `ok`; the exit code is 1 when one is missed. Ratios are taken within one run, because
machines differ and are shared; CPU times are those of whole process trees.
""",
)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure this Roost on this machine."""
    if ctx.invoked_subcommand is None:
        _measure(NAMES)


@bench.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES), required=True)
def run(names: tuple[str, ...]) -> None:
    """Only some benchmarks."""
    _measure(names)


@bench.command()
@click.option("--nodes", type=click.IntRange(1, 200_000), default=5_000, show_default=True)
@click.option("--count", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True)
@click.option("--shapes", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--rules", is_flag=True, help="Half of the asks carry rules about company (near, apart, spread).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def place(nodes: int, count: int, shapes: int, rules: bool, as_json: bool) -> None:
    """Placements per CPU second: all filters active, all nodes considered, each placement seeing those before it."""
    from roost.bench.place import rate

    found = rate(nodes, count, shapes, rules=rules)
    if as_json:
        told = {
            "placements_per_cpu_s": round(found, 1),
            "nodes": nodes,
            "count": count,
            "shapes": shapes,
            "rules": rules,
        }
        click.echo(msgspec.json.encode(told))
    else:
        what = "with rules about company" if rules else "without rules about company"
        click.echo(f"{found:,.0f} placements per CPU second: {count:,} of {shapes} shapes on {nodes:,} nodes, {what}")


def _measure(names: tuple[str, ...]) -> None:
    from importlib import import_module

    from roost.bench.figure import Missing

    missed = []
    for name in names:
        click.echo(f"measuring {name} ...", err=True)
        try:
            figures = import_module(f"roost.bench.{name}").measure()
        except Missing as error:
            click.echo(f"{name}: {error}", err=True)
            continue
        for figure in figures:
            click.echo(msgspec.json.encode(figure))
            if figure.ok is False:
                missed.append(figure.figure)
    if missed:
        click.echo(f"missed: {', '.join(missed)}", err=True)
        sys.exit(1)
