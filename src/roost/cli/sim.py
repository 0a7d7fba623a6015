"""roost sim: the deciding core without a server, on a fleet or a trace in a file, or in a world full of faults."""

import sys
import time
from typing import BinaryIO, NoReturn

import click

from roost.cli.outcome import DONE, FAILED, NOT_PLACED, USAGE
from roost.cli.output import print_json, print_table, say
from roost.cli.replay import replay
from roost.model.errors import RoostError
from roost.model.units import show_duration
from roost.server.plugins import load_plugins
from roost.sim.mutants import MUTANTS, mutated
from roost.sim.place import Outcome as Places
from roost.sim.place import Placement, place_file
from roost.sim.seeds import Caught, Tally, catch_all, run_seeds
from roost.sim.simulate import Outcome, simulate

SEEDS = 200  # what `make sim` and a first look want: some seconds
SEEDS_MUTANT = 300  # the rarest mutant is noticed by one seed in a hundred
STORY_LINES = 40  # of a failure; --trace shows the rest
PROGRESS_S = 5.0


@click.group()
def sim() -> None:
    """Try things out without a server."""


sim.add_command(replay)


@sim.command(
    epilog="""\b
Example of a FILE:
  strategy: best_fit
  nodes:
    - {name: n1, cpu: 8, memory: 16GiB, used: {cpu: 2}}
    - {name: n2, cpu: 4, memory: 8GiB, zone: a}
  workloads:
    - {name: web, count: 3, resources: {cpu: 2, memory: 1GiB}}
"""
)
@click.argument("file", type=click.File("rb"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def place(file: BinaryIO, as_json: bool) -> None:
    """Place the workloads of FILE on its nodes: one pass, the same decisions a server makes.

    FILE is YAML or JSON (- for standard input): strategy, seed, nodes and workloads. Exit code 0: all were placed;
    4: some were not; 2: the file is wrong.
    """
    try:
        load_plugins()
        outcome = place_file(file.read())
    except RoostError as error:
        _refuse(error, as_json)
    if as_json:
        print_json(outcome)
    else:
        _show_places(outcome)
    sys.exit(NOT_PLACED if outcome.pending else DONE)


@sim.command(
    epilog="""\b
Examples:
  roost sim faults                              200 seeds
  roost sim faults --seeds 10000 --jobs 2       many, on two processes
  roost sim faults --seed 123 --trace           one, with its whole story
  roost sim faults --mutants                    is every safety rule missed when it is gone?
"""
)
@click.option("--seed", type=click.IntRange(0), default=None, help="The first seed, or the only one.")
@click.option(
    "--seeds", type=click.IntRange(1), default=None, help=f"How many seeds. [default: {SEEDS}, or 1 with --seed]"
)
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="On how many processes.")
@click.option(
    "--mutant",
    type=click.Choice(list(MUTANTS)),
    metavar="NAME",
    help="Switch this safety rule off; it has to be noticed.",
)
@click.option("--mutants", is_flag=True, help="Switch each safety rule off in turn.")
@click.option("--trace", is_flag=True, help="Print the story of each seed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def faults(
    seed: int | None, seeds: int | None, jobs: int, mutant: str | None, mutants: bool, trace: bool, as_json: bool
) -> None:
    """Run server, agents and keepers in a world where everything goes wrong, and check that nothing bad comes of it.

    Each seed is one world with its own faults: lost, late and repeated messages, partitions, crashes, hanging
    processes, failing commits, clocks that differ. The same seed is the same story, always. Exit code 1: something
    happened that must never happen, or a safety rule was switched off and nobody noticed.
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
        with mutated(mutant or ""):
            tally = run_seeds(chosen, 1 if mutant else jobs, _Progress(len(chosen)))
    seconds = max(time.monotonic() - began, 0.001)
    _show_tally(tally, mutant or "", seconds, as_json)
    sys.exit(DONE if bool(tally.failures) == bool(mutant) else FAILED)


class _Progress:
    """A line from time to time, to whoever sits there."""

    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._began = self._told = time.monotonic()

    def __call__(self, tally: Tally) -> None:
        now = time.monotonic()
        if now - self._told < PROGRESS_S:
            return
        self._told = now
        rate = tally.seeds / (now - self._began)
        left = show_duration(int((self._seeds - tally.seeds) / rate) * 1_000)
        done = f"{tally.seeds:,} of {self._seeds:,} seeds, {len(tally.failures)} failed"
        say(f"{done}, {rate:.0f} per second, {left} left")


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
            {"seed": each.seed, "trouble": each.trouble, "replay": _replay(each, mutant), "story": each.story}
            for each in tally.failures
        ]
        told = {"seeds": tally.seeds, "steps": tally.steps, "commits": tally.commits, "runs": tally.runs}
        print_json({**told, "seconds": round(seconds, 3), "mutant": mutant, "failures": failures})
        return
    for each in tally.failures:
        click.echo(f"seed {each.seed}: {each.trouble}")
        for line in each.story[-STORY_LINES:]:
            click.echo(f"  {line}")
        click.echo(f"  again, with the whole story: {_replay(each, mutant)}")
    click.echo(
        f"{tally.seeds:,} seeds, {len(tally.failures)} failed; {tally.runs:,} runs, {tally.commits:,} commits, "
        f"{show_duration(tally.virtual_ms)} of virtual time in {seconds:.1f} s ({tally.seeds / seconds:.0f} per second)"
    )


def _replay(outcome: Outcome, mutant: str) -> str:
    return f"roost sim faults --seed {outcome.seed} --trace" + (f" --mutant {mutant}" if mutant else "")


def _show_caught(caught: list[Caught], as_json: bool) -> int:
    if as_json:
        print_json({"mutants": caught})
    else:
        rows = [
            (each.mutant, "not noticed" if each.seed is None else f"seed {each.seed}", each.trouble or each.rule)
            for each in caught
        ]
        print_table(("MUTANT", "NOTICED", "AS"), rows)
    missed = [each.mutant for each in caught if each.seed is None]
    if missed:
        say(f"nobody notices when these are gone: {', '.join(missed)}")
    return FAILED if missed else DONE


def _refuse(error: RoostError, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"error": {"code": error.code, "message": error.message, "path": error.path}})
    say(str(error))
    sys.exit(USAGE)


def _given(placement: Placement) -> tuple[str, str]:
    """Its devices and ports; a column that nobody has anything in is left out."""
    ports = ", ".join(f"{name} {port}" for name, port in placement.ports.items())
    return ", ".join(map(str, placement.devices)) or "-", ports or "-"


def _show_places(outcome: Places) -> None:
    rows = []
    for each in outcome.placements:
        over = ", ".join(f"{node} {score:.3f}" for node, score in each.scores.items() if node != each.node)
        rows.append((each.instance, each.node, each.strategy, f"{each.scores[each.node]:.3f}", over, *_given(each)))
    header = ("INSTANCE", "NODE", "STRATEGY", "SCORE", "OVER", "GPUS", "PORTS")
    columns = [number for number in range(len(header)) if number < 5 or any(row[number] != "-" for row in rows)]
    print_table(tuple(header[each] for each in columns), [tuple(row[each] for each in columns) for row in rows])
    for pending in outcome.pending:
        click.echo(f"{pending.instance} waits ({pending.code}): {pending.words}")
    click.echo(f"{len(rows)} of {len(rows) + len(outcome.pending)} placed")
