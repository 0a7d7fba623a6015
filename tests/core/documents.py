"""Workloads by chance, as documents: for Hypothesis to choose from, and for a plain random choice."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

NAMES = ("one", "two", "three", "four", "five", "six", "seven")
PROJECTS = ("default", "default", "red")
PORTS = ({"http": 80}, {"any": 0})
APART = ([{"workload": "one"}], [{"workload": "two"}])

CAUSES = st.sampled_from(["lost", "failed", "timed_out", "exit:3"])
DOCUMENTS = st.fixed_dictionaries(
    {"name": st.sampled_from(NAMES), "command": st.just("true")},
    optional={
        "project": st.sampled_from(PROJECTS),
        "kind": st.sampled_from(["job", "service"]),
        "count": st.integers(1, 5),
        "gang": st.booleans(),
        "priority": st.sampled_from([0, 1, 2, 50, 90]),
        "timeout": st.sampled_from([1, 60]),
        "ports": st.sampled_from(PORTS),
        "resources": st.fixed_dictionaries({"cpu": st.integers(0, 3)}),
        "retries": st.fixed_dictionaries({"max": st.integers(0, 2), "on": st.lists(CAUSES, max_size=3)}),
        "queue_timeout": st.sampled_from([1, 20, 300]),
        "deadline": st.sampled_from([2, 60, 600]),
        "when_full": st.sampled_from(["queue", "reject"]),
        "when_lost": st.sampled_from(["reschedule", "fail", "keep"]),
        "exclusive": st.booleans(),
        "keep": st.sampled_from([0, 60, 600]),
        "placement": st.fixed_dictionaries(
            {"strategy": st.sampled_from(["", "best_fit", "round_robin", "next_fit", "random", "first_fit"])},
            optional={"per_node": st.integers(1, 2), "apart": st.sampled_from(APART)},
        ),
    },
)


def document(pick: Callable[[Any], Any]) -> dict[str, Any]:
    """A workload by chance: mostly plain, each unusual wish now and then."""
    wishes = {
        "kind": "service",
        "project": "red",
        "count": pick([2, 5, 9]),
        "gang": True,
        "priority": pick([0, 1, 2, 50, 90]),
        "timeout": pick([1, 60]),
        "ports": pick(PORTS),
        "resources": {"cpu": pick([0, 2, 3, 5])},
        "retries": {"max": pick([0, 1, 2]), "on": pick([["lost"], ["failed"], ["lost", "exit:3", "timed_out"]])},
        "queue_timeout": pick([1, 20, 300]),
        "deadline": pick([2, 60, 600]),
        "when_full": "reject",
        "when_lost": pick(["fail", "keep"]),
        "exclusive": False,
        "keep": pick([0, 60, 600]),
        "placement": pick(
            [
                {"strategy": pick(["best_fit", "round_robin", "next_fit", "random"])},
                {"per_node": 1},
                {"apart": APART[0]},
            ]
        ),
    }
    chosen = {name: wish for name, wish in wishes.items() if pick([True, False, False])}
    return {"name": pick(NAMES), "command": "true"} | chosen
