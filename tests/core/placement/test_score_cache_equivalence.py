"""Shortlists and censuses that are kept say the same as ones that are made anew for every single placement."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roost.core.placement.score_cache import ScoreCaches
from roost.core.placement.strategies import STRATEGIES
from roost.model.errors import Invalid
from roost.model.protocol import Usage
from tests.core.fleet_builder import FleetBuilder
from tests.core.scene import facts_of

NAMES = [f"n{number}" for number in range(12)]
WORKLOADS = ["cache", "db", "web", "noisy"]
PLACES = ["node", "rack", "zone", "region"]

FACTS = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from([2, 4, 8]),
        "more": st.fixed_dictionaries({"gpu": st.sampled_from([0, 1_000, 2_000])}),
        "rack": st.sampled_from(["", "r1", "r2"]),
        "zone": st.sampled_from(["", "za", "zb"]),
        "region": st.sampled_from(["eu", "us"]),
        "taints": st.sampled_from([(), (), ("spot",), ("spot:soft",)]),
        "labels": st.sampled_from([{}, {"disk": "nvme"}]),
        "gpu_model": st.sampled_from(["", "T4"]),
    }
)
OTHERS = st.lists(
    st.fixed_dictionaries(
        {"by": st.sampled_from(PLACES)},
        optional={"weight": st.sampled_from([10, 60])},
    ).flatmap(
        lambda rule: st.one_of(
            st.sampled_from(WORKLOADS).map(lambda name: rule | {"workload": name}),
            st.sampled_from(["loud", "loud=very"]).map(lambda label: rule | {"label": label}),
        )
    ),
    max_size=2,
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "resources": st.sampled_from([{"cpu": 1}, {"cpu": 2}, {"gpu": 1}, {"cpu": 1, "gpu": 0.6}, {"gpu": 0.4}]),
        "strategy": st.sampled_from(["least_used", *sorted(STRATEGIES), "least_used"]),
    },
    optional={
        "ports": st.sampled_from([{"http": 80}, {"any": 0}, {"http": 80, "any": 0}]),
        "labels": st.sampled_from([{"loud": "very"}, {"loud": "little"}]),
        "near": OTHERS,
        "apart": OTHERS,
        "avoid": OTHERS,
        "spread": st.fixed_dictionaries(
            {"by": st.sampled_from(PLACES), "max_skew": st.sampled_from([1, 2])},
            optional={"weight": st.just(40)},
        ),
        "per_node": st.sampled_from([1, 2]),
        "require": st.sampled_from([["used.cpu < 3000"], ["zone != 'za'"], ["labels.disk == 'nvme'"]]),
        "prefer": st.sampled_from([[{"that": "zone == 'zb'", "weight": 30}], [{"that": "name < 'n5'", "weight": -20}]]),
        "tolerate": st.just(["spot"]),
        "gpu_model": st.just("T4"),
    },
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(NAMES), FACTS),
        st.tuples(st.just("leave"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("open"), st.sampled_from(NAMES), st.booleans()),
        st.tuples(st.just("measure"), st.sampled_from(NAMES), st.integers(0, 8_000)),
        st.tuples(st.just("end"), st.sampled_from(WORKLOADS), st.none()),
        *[st.tuples(st.just("place"), st.sampled_from(WORKLOADS), st.integers(0, 99))] * 6,
    ),
    min_size=10,
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(
    first=st.lists(FACTS, min_size=2, max_size=8),
    documents=st.fixed_dictionaries({name: DOCUMENTS for name in WORKLOADS}),
    events=EVENTS,
)
def test_what_is_kept_and_what_is_made_anew_agree(
    first: list[dict], documents: dict[str, dict], events: list[tuple[str, str, Any]]
) -> None:
    stored, anew = FleetBuilder(), FleetBuilder()
    for builder in (stored, anew):
        for name, facts in zip(NAMES, first, strict=False):
            builder.node(name, **facts)
    for number, (what, name, detail) in enumerate(events):
        for builder in (stored, anew):
            happen(builder, documents, what, name, detail, number)
        assert stored.standing == anew.standing, "the same nodes, devices and ports"
        forget(anew)
        for document, fields in documents.items():
            assert possible(stored.scores, document, fields) == possible(anew.scores, document, fields)
        forget(anew)


def forget(builder: FleetBuilder) -> None:
    builder.shortlists = ScoreCaches()
    builder.fleet.topology._domain_counts.clear()


def possible(do: Callable[..., Any], name: str, fields: dict, **more: Any) -> object:
    """What comes of it; no instance must be near an instance it repels."""
    try:
        return do(name, **fields, **more)
    except Invalid as error:
        assert error.code == "contradiction"
        return None


def happen(builder: FleetBuilder, documents: dict[str, dict], what: str, name: str, detail: Any, number: int) -> None:
    """One event; what is impossible just now is passed over."""
    fleet = builder.fleet
    if what == "place":
        possible(builder.place, name, documents[name], drawn=detail)
    elif what == "join":
        builder.node(name, facts=facts_of(**detail))
    elif what == "end" and builder.standing.get(name):
        builder.end(name)
    elif fleet.row(name) < 0:
        return
    elif what == "leave" and not any(status.node == name for placed in builder.standing.values() for status in placed):
        fleet.leave(name)
        builder.last = -1
    elif what == "open":
        fleet.set_open(name, is_open=detail, is_online=True)
    elif what == "measure":
        fleet.measure(name, Usage(cpu_milli=detail), number * 10_000)
