"""roost sim: the deciding core without a server, on a fleet or a trace in a file, or in a world full of faults."""

import sys
import time
from typing import BinaryIO

import click

from roost.cli.common.exit_codes import DONE, FAILED, NOT_PLACED
from roost.cli.common.options import json_option
from roost.cli.common.output import echo_err, print_json, print_table
from roost.cli.tools.sim_replay import ProgressPrinter, refuse, replay
from roost.model.errors import RoostError
from roost.model.spec.units import show_duration
from roost.server.plugins import load_plugins
from roost.sim.mutants.core import MUTANTS, mutated
from roost.sim.place import PlacedInstance, PlacementOutcome, place_file
from roost.sim.run import SeedOutcome, simulate
from roost.sim.seeds import Caught, Tally, catch_all, run_seeds

SEEDS = 200  # what `make sim` and a first look want: some seconds
SEEDS_MUTANT = 300  # the rarest mutant is noticed by one seed in a hundred
STORY_LINES = 40  # of a failure; --trace shows the rest


@click.group()
def sim() -> None:
    """Simulate without a server."""


sim.add_command(replay)


@sim.command()
@click.argument("file", type=click.File("rb"))
@json_option
def place(file: BinaryIO, as_json: bool) -> None:
    """Place the workloads of FILE on its nodes: one pass, the same decisions a server makes.

    FILE is YAML or JSON (- for standard input): strategy, seed, nodes and workloads. Exit code 0: all were placed; 4:
    some are pending; 2: the file is invalid.

    Examples:
      roost sim place fleet.yaml

    A FILE:
      strategy: best_fit
      nodes:
        - {name: n1, cpu: 8, memory: 16GiB, used: {cpu: 2}}
        - {name: n2, cpu: 4, memory: 8GiB, zone: a}
      workloads:
        - {name: web, count: 3, resources: {cpu: 2, memory: 1GiB}}
    """
    try:
        load_plugins()
        outcome = place_file(file.read())
    except RoostError as error:
        refuse(error, as_json)
    if as_json:
        print_json(outcome)
    else:
        _show_places(outcome)
    sys.exit(NOT_PLACED if outcome.pending else DONE)


@sim.command()
@click.option("--seed", type=click.IntRange(0), default=None, help="The first seed, or the only one.")
@click.option(
    "--seeds", type=click.IntRange(1), default=None, help=f"How many seeds. [default: {SEEDS}, or 1 with --seed]"
)
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of processes.")
@click.option("--mutant", type=click.Choice(list(MUTANTS)), metavar="NAME",
              help="Remove this safety rule; a check must notice it.")  # fmt: skip
@click.option("--mutants", is_flag=True, help="Remove each safety rule in turn.")
@click.option("--trace", is_flag=True, help="Print all events of each seed.")
@json_option
def faults(
    seed: int | None, seeds: int | None, jobs: int, mutant: str | None, mutants: bool, trace: bool, as_json: bool
) -> None:
    """Run servers, agents and keepers in a simulated world with faults, and check safety and convergence.

    Each seed is one world with its own faults: lost, late and repeated messages, partitions, crashes, hanging
    processes, failing commits, clocks that differ. The same seed gives the same events. Exit code 1: a check failed,
    or a mutant was not noticed.

    Examples:
      roost sim faults                              200 seeds
      roost sim faults --seeds 10000 --jobs 2       many, on two processes
      roost sim faults --seed 123 --trace           one, with all its events
      roost sim faults --mutants                    is every removed rule noticed?
    """
    first = seed or 0
    if mutants:
        chosen = range(first, first + (seeds or SEEDS_MUTANT))
        sys.exit(_show_caught(list(catch_all(chosen, jobs)), as_json))
    chosen = range(first, first + (seeds or (SEEDS if seed is None else 1)))
    began = time.monotonic()
    if trace:
        tally = _trace(chosen, mutant or "", as_json)
    else:
        progress = ProgressPrinter("faults")

        def report(tally: Tally) -> None:
            done = f"{tally.seeds:,} of {len(chosen):,} seeds, {len(tally.failures)} failed"
            progress(tally.seeds / len(chosen), done)

        with mutated(mutant or ""):
            tally = run_seeds(chosen, 1 if mutant else jobs, report)
    seconds = max(time.monotonic() - began, 0.001)
    _show_tally(tally, mutant or "", seconds, as_json)
    sys.exit(DONE if bool(tally.failures) == bool(mutant) else FAILED)


def _trace(seeds: range, mutant: str, as_json: bool) -> Tally:
    tally = Tally()
    with mutated(mutant):
        for seed in seeds:
            outcome = simulate(seed, lambda line: click.echo(line, err=as_json))
            click.echo(f"seed {seed}: fingerprint {outcome.fingerprint}", err=as_json)
            tally.add(outcome)
    return tally


def _show_tally(tally: Tally, mutant: str, seconds: float, as_json: bool) -> None:
    if as_json:
        failures = [
            {"seed": failed.seed, "trouble": failed.trouble, "replay": _replay(failed, mutant), "story": failed.story}
            for failed in tally.failures
        ]
        answer = {"seeds": tally.seeds, "steps": tally.steps, "commits": tally.commits, "runs": tally.runs}
        print_json({**answer, "seconds": round(seconds, 3), "mutant": mutant, "failures": failures})
        return
    for outcome in tally.failures:
        click.echo(f"seed {outcome.seed}: {outcome.trouble}")
        for line in outcome.story[-STORY_LINES:]:
            click.echo(f"  {line}")
        click.echo(f"  again, with the whole story: {_replay(outcome, mutant)}")
    click.echo(
        f"{tally.seeds:,} seeds, {len(tally.failures)} failed; {tally.runs:,} runs, {tally.commits:,} commits, "
        f"{show_duration(tally.virtual_ms)} of virtual time in {seconds:.1f} s ({tally.seeds / seconds:.0f} per second)"
    )


def _replay(outcome: SeedOutcome, mutant: str) -> str:
    return f"roost sim faults --seed {outcome.seed} --trace" + (f" --mutant {mutant}" if mutant else "")


def _show_caught(caught: list[Caught], as_json: bool) -> int:
    if as_json:
        print_json({"mutants": caught})
    else:
        seen = ["not noticed" if result.seed is None else f"seed {result.seed}" for result in caught]
        rows = [(result.mutant, by, result.trouble or result.rule) for result, by in zip(caught, seen, strict=True)]
        print_table(("MUTANT", "NOTICED", "AS"), rows)
    missed = [result.mutant for result in caught if result.seed is None]
    if missed:
        echo_err(f"mutants that no check noticed: {', '.join(missed)}")
    return FAILED if missed else DONE


def _placed_row(placement: PlacedInstance) -> tuple[str, ...]:
    over = ", ".join(f"{node} {score:.3f}" for node, score in placement.scores.items() if node != placement.node)
    ports = ", ".join(f"{name} {port}" for name, port in placement.ports.items()) or "-"
    devices = ", ".join(map(str, placement.devices)) or "-"
    score = f"{placement.scores[placement.node]:.3f}"
    return placement.instance, placement.node, placement.strategy, score, over, devices, ports


def _show_places(outcome: PlacementOutcome) -> None:
    rows = [_placed_row(placement) for placement in outcome.placements]
    header = ("INSTANCE", "NODE", "STRATEGY", "SCORE", "OVER", "GPUS", "PORTS")
    columns = [number for number in range(len(header)) if number < 5 or any(row[number] != "-" for row in rows)]
    print_table(tuple(header[column] for column in columns), [tuple(row[column] for column in columns) for row in rows])
    for pending in outcome.pending:
        click.echo(f"{pending.instance} is pending ({pending.code}): {pending.message}")
    click.echo(f"{len(rows)} of {len(rows) + len(outcome.pending)} placed")
