"""roost bench: what Roost costs on this machine, one JSON line per figure."""

import sys

import click
import msgspec

NAMES = ("place", "memory", "durable", "tasks", "restart", "rest")


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
@click.option("--json", "as_json", is_flag=True, help="One JSON line, as the others print it anyway.")
def place(nodes: int, count: int, shapes: int, as_json: bool) -> None:
    """Placements per CPU second, all nodes considered each time."""
    from roost.bench.place import measure

    for figure in measure(nodes, count, shapes):
        click.echo(msgspec.json.encode(figure))


def _measure(names: tuple[str, ...]) -> None:
    from importlib import import_module

    missed = []
    for name in names:
        click.echo(f"measuring {name} ...", err=True)
        for figure in import_module(f"roost.bench.{name}").measure():
            click.echo(msgspec.json.encode(figure))
            if figure.ok is False:
                missed.append(figure.figure)
    if missed:
        click.echo(f"missed: {', '.join(missed)}", err=True)
        sys.exit(1)
