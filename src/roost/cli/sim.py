"""roost sim: the deciding core without a server, on a fleet in a file or in a world full of faults."""

import json
import sys
from typing import BinaryIO, NoReturn

import click
import msgspec

from roost.model.errors import RoostError
from roost.sim.place import Outcome, place_file

EXIT_USAGE = 2
EXIT_PENDING = 4


@click.group()
def sim() -> None:
    """Try things out without a server."""


@sim.command()
@click.argument("file", type=click.File("rb"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def place(file: BinaryIO, as_json: bool) -> None:
    """Place the workloads of FILE on its nodes: one pass, the same decisions a server makes.

    FILE is YAML or JSON (- for standard input): strategy, seed, nodes and workloads. Exit code 0: all were placed;
    4: some were not; 2: the file is wrong.
    """
    try:
        outcome = place_file(file.read())
    except RoostError as error:
        _refuse(error, as_json)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(outcome), indent=2))
    else:
        _show(outcome)
    sys.exit(EXIT_PENDING if outcome.pending else 0)


def _refuse(error: RoostError, as_json: bool) -> NoReturn:
    if as_json:
        told = {"code": error.code, "message": error.message, "path": error.path}
        click.echo(json.dumps({"error": told}, indent=2))
    click.echo(f"Error: {error}", err=True)
    sys.exit(EXIT_USAGE)


def _show(outcome: Outcome) -> None:
    rows = [("INSTANCE", "NODE", "STRATEGY", "SCORE", "OVER")]
    for each in outcome.placements:
        over = ", ".join(f"{node} {score:.3f}" for node, score in each.scores.items() if node != each.node)
        rows.append((each.instance, each.node, each.strategy, f"{each.scores[each.node]:.3f}", over))
    if outcome.placements:
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for pending in outcome.pending:
        click.echo(f"{pending.instance} waits ({pending.code}): {pending.words}")
    total = len(outcome.placements) + len(outcome.pending)
    click.echo(f"{len(outcome.placements)} of {total} placed")
