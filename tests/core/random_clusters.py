"""Random actions on small clusters, drawn by hypothesis and turned into events for a state."""

from collections import deque
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from roost.core.replica import load
from roost.core.state.fleet import Fleet
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.state.topology import TopologyIndex
from roost.core.step import step
from roost.model.errors import Invalid
from roost.model.events import (
    Cancel,
    Drain,
    Event,
    HeartbeatsReceived,
    NodeConnected,
    NodeDisconnected,
    ReportsReceived,
    Retry,
    SetProject,
    Submit,
    Uncordon,
)
from roost.model.protocol import Hello, Report
from roost.model.records.project import Project
from roost.ports.store import Snapshot
from tests.core.scene import BEGINNING_MS, facts_of, wanted

NODES = ("a", "b", "c")
ZONES = {"a": "x", "b": "x", "c": "y"}
NAMES = ("one", "two", "three", "four", "five")
MIB = 1 << 20

COMPANIONS = st.fixed_dictionaries({"workload": st.sampled_from(NAMES), "by": st.sampled_from(["node", "zone"])})
PLACEMENTS = st.fixed_dictionaries(
    {},
    optional={
        "pool": st.sampled_from(["default", "far"]),
        "require": st.lists(
            st.sampled_from(["zone == 'x'", "zone == 'y'", "arch == 'arm64'"]), max_size=2, unique=True
        ),
        "apart": st.lists(COMPANIONS, max_size=1),
        "near": st.lists(COMPANIONS, max_size=1),
        "spread": st.just({"by": "zone"}),
        "per_node": st.integers(1, 2),
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "command": st.just("true"),
        "resources": st.fixed_dictionaries(
            {"cpu": st.integers(1, 5)},
            optional={"memory": st.sampled_from(["64MiB", "200MiB"]), "gpu": st.integers(1, 3)},
        ),
    },
    optional={
        "kind": st.sampled_from(["job", "service"]),
        "count": st.integers(1, 4),
        "priority": st.sampled_from([0, 50, 90]),
        "expected": st.sampled_from([5, 60]),
        "ports": st.sampled_from([{"http": 8080}, {"any": 0}]),
        "gang": st.just(True),
        "when_full": st.sampled_from(["queue", "reject"]),
        "placement": PLACEMENTS,
    },
)
ACTIONS = st.one_of(
    st.tuples(st.just("submit"), DOCUMENTS),
    st.tuples(st.just("submit"), DOCUMENTS),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.just("run"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["part", "hello", "drain", "uncordon"]), st.sampled_from(NODES)),
    st.tuples(st.sampled_from(["cancel", "retry"]), st.sampled_from(NAMES)),
    st.tuples(st.just("wait"), st.sampled_from([1, 40, 3_600])),
    st.tuples(st.just("quota"), st.integers(1, 8)),
)
ACTION_LISTS = st.lists(ACTIONS, min_size=3, max_size=15)


def small_cluster() -> State:
    """Three nodes in two zones, nothing else."""
    state = load(Snapshot(0, []), BEGINNING_MS, Settings())  # as a server begins: leases have their length
    step(state, [_hello(name) for name in NODES], BEGINNING_MS)
    return state


def apply_actions(state: State, actions: list[Any]) -> list[Any]:
    """Apply actions to a state; returns the outcome of each."""
    outcomes = []
    for kind, what in actions:
        now = state.now_ms + (what * 1_000 if kind == "wait" else 10)
        done = step(state, events_of(state, kind, what, now), now)
        outcomes.append(
            (done.placed, done.assignments, [type(reply.value) for reply in done.replies], done.transitions)
        )
    return outcomes


def events_of(state: State, kind: str, what: Any, now: int) -> list[Event]:
    """What happens, as events; nothing if it cannot happen to this state."""
    if kind == "submit":
        try:
            return [Submit(1, (wanted(what),), True)]
        except Invalid:  # rules that contradict each other are refused at the edge
            return []
    if kind in ("end", "run"):
        allocated = [
            instance for name in sorted(state.allocated) for _, instance in sorted(state.allocated[name].items())
        ]
        if not allocated:
            return []
        one = allocated[what % len(allocated)]
        report = Report(one.token, "running") if kind == "run" else Report(one.token, "ended", cause="exited", code=0)
        return [ReportsReceived(one.node, state.nodes[one.node].session, 1, (report,))]
    if kind == "wait":
        up = [name for name in NODES if name in state.nodes and state.liveness[name].connected]
        return [HeartbeatsReceived(tuple((name, state.nodes[name].session, now) for name in up))]
    if kind == "quota":
        return [SetProject(1, Project("default", quota={"cpu": what * 1_000}))]
    if kind == "hello":
        return [_hello(what)]
    if what in NODES and what not in state.nodes:
        return []
    return {
        "part": lambda: [NodeDisconnected(what, state.nodes[what].session)],
        "drain": lambda: [Drain(1, what, 60_000)],
        "uncordon": lambda: [Uncordon(1, what)],
        "cancel": lambda: [Cancel(1, f"default/{what}")],
        "retry": lambda: [Retry(1, f"default/{what}")],
    }[kind]()


def reported(state: State) -> Any:
    """Everything that a state is made of, as plain data; what is only remembered to be quick is left out."""
    return _plain(state, frozenset())


def _hello(name: str) -> NodeConnected:
    facts = facts_of(cpu=4, memory="256MiB", zone=ZONES[name], more={"gpu": 2_000} if name == "c" else {})
    return NodeConnected(1, Hello(name, f"machine-{name}", facts, 0, ()))


FORGETTABLE = {"score_caches", "policies", "derived"}  # and in the fleet, whatever begins with _


def _plain(value: Any, above: frozenset[int]) -> Any:
    if value is None or isinstance(value, int | str | bytes | bool | float):
        return value
    if id(value) in above:
        return "..."
    above = above | {id(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return [(_plain(key, above), _plain(item, above)) for key, item in dict.items(value)]
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple | deque):
        return [_plain(item, above) for item in value]
    if isinstance(value, msgspec.Struct):
        return [_plain(getattr(value, field), above) for field in value.__struct_fields__]
    names = getattr(type(value), "__slots__", None) or sorted(vars(value))
    stored = [name for name in names if name not in FORGETTABLE and not (name.startswith("_") and is_cache(value))]
    return [(name, _plain(getattr(value, name), above)) for name in stored]


def is_cache(value: Any) -> bool:
    """The fleet and its crowd keep answers in fields of their own; they are found again when they are missing."""
    return isinstance(value, Fleet | TopologyIndex)
