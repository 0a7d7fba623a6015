"""The simulated world: many seeds without harm, the same seed the same story, every safety rule missed when gone."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from roost.cli.sim import sim
from roost.sim.mutants import MUTANTS, mutated
from roost.sim.seeds import catch, run_seeds, worlds_for
from roost.sim.simulate import simulate

SEEDS = 200
SEEDS_AT_ONCE = 20
SEEDS_MUTANT = 400


def faults(*options: str) -> Result:
    return CliRunner().invoke(sim, ["faults", *options])


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_whatever_goes_wrong_nothing_bad_happens(first: int) -> None:
    tally = run_seeds(range(first, first + SEEDS_AT_ONCE), 1, lambda tally: None)
    troubles = {f"roost sim faults --seed {each.seed} --trace": each.trouble for each in tally.failures}
    assert not troubles
    assert tally.seeds == SEEDS_AT_ONCE
    assert tally.runs > SEEDS_AT_ONCE, "a world in which nothing runs proves nothing"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_safety_rule_that_is_gone_is_missed(mutant: str) -> None:
    caught = catch(mutant, worlds_for(mutant, range(SEEDS_MUTANT)))
    assert caught.seed is not None, f"nobody noticed in {SEEDS_MUTANT} seeds: {caught.rule}"
    assert not simulate(caught.seed).trouble, "the same seed has to be fine with the rule"


def test_a_mutant_leaves_nothing_behind() -> None:
    before = simulate(0)
    for mutant in MUTANTS:
        with mutated(mutant):
            pass
    assert simulate(0) == before


def test_the_same_seed_is_the_same_story_in_every_process() -> None:
    code = "from roost.sim.simulate import simulate; print(*(simulate(seed).fingerprint for seed in (3, 4)))"
    stories = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for salt in ("1", "2")
    ]
    here = [simulate(seed).fingerprint for seed in (3, 4)]
    assert stories == [here, here]
    assert here[0] != here[1]


def test_a_story_can_be_watched_and_says_how_it_can_be_told_again() -> None:
    result = faults("--seed", "5", "--trace")
    assert result.exit_code == 0
    assert "s0: starts at" in result.output
    assert f"seed 5: fingerprint {simulate(5).fingerprint}" in result.output
    assert "1 seeds, 0 failed" in result.output


def test_a_failing_seed_tells_its_last_events_and_how_to_play_it_again() -> None:
    with mutated("acts_before_commit"):
        result = faults("--seed", "0")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith("seed 0: ")
    assert "WRONG" in lines[-3]
    assert lines[-2] == "  again, with the whole story: roost sim faults --seed 0 --trace"
    assert lines[-1].startswith("1 seeds, 1 failed; ")


def test_a_mutant_has_to_be_noticed() -> None:
    noticed = faults("--mutant", "acts_before_commit", "--seed", "0")
    assert noticed.exit_code == 0
    assert "--seed 0 --trace --mutant acts_before_commit" in noticed.output
    assert faults("--mutant", "shorter_lease_counts_at_once", "--seed", "0").exit_code == 1


def test_mutants_that_nobody_notices_are_named() -> None:
    result = faults("--mutants", "--seeds", "1", "--json")
    assert result.exit_code == 1
    caught = json.loads(result.stdout)["mutants"]
    assert [each["mutant"] for each in caught] == list(MUTANTS)
    assert all(each["rule"] for each in caught)
    missed = [each["mutant"] for each in caught if each["seed"] is None]
    assert missed and result.stderr == f"roost: nobody notices when these are gone: {', '.join(missed)}\n"


def test_programs_get_json() -> None:
    result = faults("--seeds", "3", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["seeds"], told["failures"], told["mutant"]) == (3, [], "")
    assert told["runs"] > 0 and told["commits"] > 0


@pytest.mark.serial
def test_several_processes_come_to_the_same() -> None:
    alone, together = (json.loads(faults("--seeds", "24", "--jobs", jobs, "--json").stdout) for jobs in ("1", "2"))
    assert {**alone, "seconds": 0} == {**together, "seconds": 0}


@pytest.mark.parametrize("options", [("--seeds", "0"), ("--jobs", "0"), ("--mutant", "none"), ("--seed", "-1")])
def test_wrong_usage_is_refused(options: tuple[str, str]) -> None:
    assert faults(*options).exit_code == 2
