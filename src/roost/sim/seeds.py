"""Many seeds, in one process or several: which failed, and which mutants were noticed."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

import msgspec

from roost.sim.mutants.core import MUTANTS, mutated
from roost.sim.run import SeedOutcome, simulate

CHUNK = 10  # seeds per message between processes: a third of a second of work
FAILURES_MAX = 20  # kept with their stories; after that there is something to repair first


class Tally(msgspec.Struct):
    seeds: int = 0
    steps: int = 0
    commits: int = 0
    runs: int = 0
    virtual_ms: int = 0
    failures: list[SeedOutcome] = []

    def add(self, outcome: SeedOutcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        self.commits += outcome.commits
        self.runs += outcome.runs
        self.virtual_ms += outcome.virtual_ms
        if outcome.trouble:
            self.failures.append(outcome)


class Caught(msgspec.Struct):
    mutant: str
    rule: str
    seed: int | None
    trouble: str = ""


def run_seeds(seeds: Sequence[int], jobs: int, progress: Callable[[Tally], None]) -> Tally:
    tally = Tally()
    for outcome in _outcomes(seeds, jobs):
        tally.add(outcome)
        progress(tally)
        if len(tally.failures) >= FAILURES_MAX:
            break
    return tally


def catch(mutant: str, seeds: Sequence[int]) -> Caught:
    rule = MUTANTS[mutant].rule
    with mutated(mutant):
        for seed in seeds:
            outcome = simulate(seed)
            if outcome.trouble:
                return Caught(mutant, rule, seed, outcome.trouble)
    return Caught(mutant, rule, None)


def worlds_for(mutant: str, seeds: Sequence[int]) -> list[int]:
    """As many seeds, of worlds in which a mutant can be noticed: those of odd seeds have themes."""
    return [2 * seed + MUTANTS[mutant].themes for seed in seeds]


def catch_all(seeds: Sequence[int], jobs: int) -> Iterator[Caught]:
    if jobs == 1:
        yield from (catch(mutant, worlds_for(mutant, seeds)) for mutant in MUTANTS)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(catch, MUTANTS, [worlds_for(mutant, seeds) for mutant in MUTANTS])


def _outcomes(seeds: Sequence[int], jobs: int) -> Iterator[SeedOutcome]:
    if jobs == 1:
        yield from map(simulate, seeds)
        return
    waiting = iter(seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK))
    with ProcessPoolExecutor(jobs) as pool:
        # As many as keep all processes busy, not all: a long run that is stopped has little left to finish.
        running = [pool.submit(_chunk, chunk) for chunk in islice(waiting, jobs * 2)]
        while running:
            yield from running.pop(0).result()
            running += [pool.submit(_chunk, chunk) for chunk in islice(waiting, 1)]


def _chunk(seeds: Sequence[int]) -> list[SeedOutcome]:
    return [simulate(seed) for seed in seeds]
