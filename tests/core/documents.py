"""Workloads by chance, as documents: for Hypothesis to choose from, and for a plain random choice."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

NAMES = ("one", "two", "three", "four", "five", "six", "seven")
PROJECTS = ("default", "default", "red")
PORTS = ({"http": 80}, {"any": 0})
APART = ([{"workload": "one"}], [{"workload": "two"}])

UPDATES = (
    {"max_unavailable": 1},
    {"max_unavailable": 0, "max_surge": 2, "healthy_after": 0},
    {"max_unavailable": "50%", "max_surge": "50%", "canary": 1, "deadline": 5, "failures": 1},
    {"max_unavailable": 1, "canary": 2, "deadline": 60, "rollback": False},
)
RESTARTS = ({"when": "never"}, {"when": "on_failure", "pause": 2}, {"pause": 1, "pause_max": 4})
SCHEDULES = ("* * * * *", "*/2 * * * *", "0 3 * * *")
OVERLAPS = ("skip", "allow", "wait", "replace")
WHENS = ("succeeded", "finished", "started", None)

CAUSES = st.sampled_from(["lost", "failed", "timed_out", "exit:3"])
AFTER = st.fixed_dictionaries(
    {"workload": st.sampled_from(NAMES)},
    optional={"when": st.sampled_from(WHENS), "each": st.booleans()},
)
SCHEDULE = st.fixed_dictionaries(
    {"cron": st.sampled_from(SCHEDULES)},
    optional={
        "overlap": st.sampled_from(OVERLAPS),
        "catch_up": st.integers(0, 3),
        "history_limit": st.integers(0, 2),
        "zone": st.sampled_from(["UTC", "Europe/Berlin"]),
    },
)
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
        "when_lost": st.sampled_from(["reschedule", "fail", "pin"]),
        "fenced": st.booleans(),
        "retention": st.sampled_from([0, 60, 600]),
        "placement": st.fixed_dictionaries(
            {"strategy": st.sampled_from(["", "best_fit", "round_robin", "next_fit", "random", "first_fit"])},
            optional={"per_node": st.integers(1, 2), "apart": st.sampled_from(APART)},
        ),
        "update": st.sampled_from(UPDATES),
        "restart": st.sampled_from(RESTARTS),
        "after": st.lists(AFTER, max_size=2),
        "schedule": SCHEDULE,
        "each": st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=3),
    },
).map(lambda raw: sensible(raw))


def sensible(raw: dict[str, Any]) -> dict[str, Any]:
    """The same without what the edge refuses: blocks of the other kind, waiting for itself, two counts."""
    kind, own = raw.get("kind", "job"), dict(raw)
    for block in ("schedule", "each") if kind == "service" else ("update", "restart"):
        own.pop(block, None)
    if "each" in own:
        own.pop("count", None)
    if "after" in own:
        named = {condition["workload"]: condition for condition in own["after"] if condition["workload"] != own["name"]}
        own["after"] = list(named.values())
    return own


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
        "when_lost": pick(["fail", "pin"]),
        "fenced": False,
        "retention": pick([0, 60, 600]),
        "placement": pick(
            [
                {"strategy": pick(["best_fit", "round_robin", "next_fit", "random"])},
                {"per_node": 1},
                {"apart": APART[0]},
            ]
        ),
        "command": pick(["true", "serve"]),
        "update": pick(UPDATES),
        "restart": pick(RESTARTS),
        "after": [{"workload": pick(NAMES), "when": pick(WHENS), "each": pick([True, False, False])}],
        "schedule": {"cron": pick(SCHEDULES), "overlap": pick(OVERLAPS), "catch_up": pick([0, 1, 3])},
        "each": pick([["x"], ["x", "y"]]),
    }
    rare = ("schedule", "each", "after")  # otherwise little else would be left
    chosen = {name: wish for name, wish in wishes.items() if pick([True, False, False] + [False] * 6 * (name in rare))}
    return sensible({"name": pick(NAMES), "command": "true"} | chosen)
