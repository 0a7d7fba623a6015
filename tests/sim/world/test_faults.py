"""The simulated world: many seeds without harm, the same seed the same story, every safety rule missed when gone."""

import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from roost.agent.connection.machine import LinkMachine
from roost.cli.tools.sim import sim
from roost.core import timers
from roost.sim.mutants.core import MUTANTS, mutated
from roost.sim.run import Life, simulate
from roost.sim.seeds import catch, run_seeds, worlds_for
from roost.sim.world.world import World

SEEDS = 200
SEEDS_AT_ONCE = 20
SEEDS_MUTANT = 400
FAILED_ONCE = (
    201_931,  # a collector of garbage that was unsure for a moment kept its blobs as going
    910_111,  # an agent that took over a container did not know its image, and nor did the server
)


def faults(*options: str) -> Result:
    return CliRunner().invoke(sim, ["faults", *options])


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_whatever_goes_wrong_nothing_bad_happens(first: int) -> None:
    tally = run_seeds(range(first, first + SEEDS_AT_ONCE), 1, lambda tally: None)
    troubles = {f"roost sim faults --seed {outcome.seed} --trace": outcome.trouble for outcome in tally.failures}
    assert not troubles
    assert tally.seeds == SEEDS_AT_ONCE
    assert tally.runs > SEEDS_AT_ONCE, "a world in which nothing runs proves nothing"


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once_are_fine(seed: int) -> None:
    assert not simulate(seed).trouble


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_safety_rule_that_is_gone_is_missed(mutant: str) -> None:
    caught = catch(mutant, worlds_for(mutant, range(SEEDS_MUTANT)))
    assert caught.seed is not None, f"not noticed in {SEEDS_MUTANT} seeds: {caught.rule}"
    with mutated(mutant, harmless=True):
        assert not simulate(caught.seed).trouble, "the same seed has to be fine with the rule"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_changes_the_product_and_not_the_simulator(mutant: str) -> None:
    for owner, _, _ in MUTANTS[mutant].patches():
        if owner is not timers.TIMERS:
            module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
            assert module.startswith("roost.") and not module.startswith("roost.sim")


def test_a_mutant_leaves_nothing_behind() -> None:
    before = simulate(0)
    for mutant in MUTANTS:
        with mutated(mutant):
            pass
    assert simulate(0) == before


def test_the_same_seed_is_the_same_story_in_every_process() -> None:
    code = "from roost.sim.run import simulate; print(*(simulate(seed).fingerprint for seed in (3, 4)))"
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


def test_a_story_can_be_watched_and_says_how_it_can_be_repeated() -> None:
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
    result = faults("--mutant", "acts_before_commit", "--seed", "0")
    assert result.exit_code == 0
    assert "--seed 0 --trace --mutant acts_before_commit" in result.output
    assert faults("--mutant", "shorter_lease_counts_at_once", "--seed", "0").exit_code == 1


def test_mutants_that_no_check_notices_are_named() -> None:
    result = faults("--mutants", "--seeds", "1", "--json")
    assert result.exit_code == 1
    caught = json.loads(result.stdout)["mutants"]
    assert [item["mutant"] for item in caught] == list(MUTANTS)
    assert all(item["rule"] for item in caught)
    missed = [item["mutant"] for item in caught if item["seed"] is None]
    assert missed and result.stderr == f"roost: mutants that no check noticed: {', '.join(missed)}\n"


def test_programs_get_json() -> None:
    result = faults("--seeds", "3", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["seeds"], answer["failures"], answer["mutant"]) == (3, [], "")
    assert answer["runs"] > 0 and answer["commits"] > 0


def test_several_processes_come_to_the_same() -> None:
    alone, together = (json.loads(faults("--seeds", "12", "--jobs", jobs, "--json").stdout) for jobs in ("1", "2"))
    assert {**alone, "seconds": 0} == {**together, "seconds": 0}


@pytest.mark.parametrize("options", [("--seeds", "0"), ("--jobs", "0"), ("--mutant", "none"), ("--seed", "-1")])
def test_wrong_usage_is_refused(options: tuple[str, str]) -> None:
    assert faults(*options).exit_code == 2


def test_a_shutdown_goes_on_when_the_agent_dies() -> None:
    world = World(0)
    life = Life(world)
    host = life.hosts[0]
    life.faults.power_on_servers()
    host.boot()
    world.run(5_000)
    host.leave()
    host.kill_agent()
    world.run(10_000)
    assert (host.up, host.agent) == (False, None)


def test_servers_tell_agents_which_server_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []
    closed, leader_found = LinkMachine.closed, LinkMachine.leader_found

    def noted(self: LinkMachine, end: Any, reason: str, now: int, leader: str = "") -> Any:
        named.extend(["by a standby"] if leader else [])
        return closed(self, end, reason, now, leader)

    def found(self: LinkMachine, address: str, now: int) -> Any:
        named.extend(["by the leader"] if address else [])
        return leader_found(self, address, now)

    monkeypatch.setattr(LinkMachine, "closed", noted)
    monkeypatch.setattr(LinkMachine, "leader_found", found)
    seeds = iter(range(100))
    while set(named) != {"by a standby", "by the leader"}:
        simulate(next(seeds))
