"""A keeper and an agent's connection to it, for every test of this folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keeper.keeper_harness import Client, KeeperHarness

SLOT = {"level": "sandbox", "user": 700_001, "group": 700_001, "project": "web"}


@pytest.fixture
def harness(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KeeperHarness]:
    """`isolation` of a test's parameters: whether its runs are in slots. Without root, those have our own user."""
    harness = KeeperHarness(tmp_path)
    if getattr(request, "param", "plain") == "slot":
        harness.isolation = SLOT if os.geteuid() == 0 else {"level": "sandbox", "project": "web"}
    yield harness
    harness.close()


BOTH = {"test_run", "test_loop_orders", "test_loop_death"}
#: These find processes by pids that the run itself printed, files by paths outside its directory, or count what the
#: keeper does at once. slots/test_slots.py has the same for slots.
ONLY_PLAIN = {
    "test_a_stopped_process_hears_that_it_has_to_end",
    "test_what_does_not_listen_is_killed_after_the_grace_with_all_its_descendants",
    "test_the_rest_of_the_group_ends_with_its_main_process",
    "test_a_daemon_that_left_the_group_ends_with_its_run_and_not_before",
    "test_what_was_touched_is_not_used_again",
    "test_what_cannot_be_started_says_why",
    "test_a_run_inherits_no_descriptor_and_no_signal_setting",
    "test_the_logs_of_many_runs_are_not_all_held_open",
    "test_a_live_run_cannot_be_forgotten_and_an_unknown_one_not_stopped",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The tests of these files run twice: runs are plain processes, and in slots."""
    if "harness" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in BOTH:
        ways = ["plain"] if metafunc.function.__name__ in ONLY_PLAIN else ["plain", "slot"]
        metafunc.parametrize("harness", ways, indirect=True)


@pytest.fixture
def client(harness: KeeperHarness) -> Client:
    harness.keeper()
    return harness.client()
