"""Scorers for fleets with GPUs: each formula on lists small enough to work out by hand, and one row like all rows."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from roost.core.placement.gpu.fragmentation import DeviceClass, FreeResources, device_class, shape_of, typical_of
from roost.core.placement.gpu.fragmentation_gain import prices, scarcest
from roost.core.placement.scorers import SCORE_MAX, balanced, dot_product, fgd
from roost.core.placement.strategies import STRATEGIES
from roost.core.state.allocation import Allocation
from roost.core.state.fleet import Fleet
from roost.core.state.workload_mix import NOTHING_TYPICAL, Shape, WorkloadMix
from roost.model.records.node import Facts
from roost.model.records.workload import Ask

SCORERS = {"dot_product": dot_product, "fgd": fgd, "balanced": balanced}


def node(cpu: int = 0, gpus: int = 0, model: str = "", memory: int = 0) -> Facts:
    """Cores, whole GPUs, bytes."""
    amounts = {"cpu": cpu * 1_000, "gpu": gpus * 1_000, "memory": memory}
    return Facts({name: amount for name, amount in amounts.items() if amount}, gpu_model=model)


def ask(cpu: int = 0, milli: int = 0, count: int = 1, models: tuple[str, ...] = (), memory: int = 0) -> Ask:
    """Cores, thousandths of each of so many GPUs, bytes."""
    amounts = {"cpu": cpu * 1_000, "gpu": milli * count, "memory": memory}
    resources = tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
    return Ask(resources, gpu_milli=milli, gpu_count=count if milli else 0, gpu_models=models)


def fleet_of(*nodes: Facts, typical: WorkloadMix = NOTHING_TYPICAL) -> Fleet:
    """Nodes n0, n1, ..."""
    fleet = Fleet()
    for number, facts in enumerate(nodes):
        fleet.join(f"n{number}", facts)
        fleet.set_open(f"n{number}", is_open=True, is_online=True)
    fleet.expect(typical)
    return fleet


def take(fleet: Fleet, row: int, what: Ask, *devices: int) -> None:
    fleet.take(fleet.names[row], Allocation(what.resources, devices, what.gpu_milli))


def best(fleet: Fleet, what: Ask, strategy: str) -> int:
    scores = STRATEGIES[strategy].score(fleet, what)
    return STRATEGIES[strategy].pick(scores, -1, 0)


# dot product


def test_the_dot_product_is_of_free_and_asked_as_parts_of_the_largest_node() -> None:
    fleet = fleet_of(node(8, 4), node(4, 2))
    # n0: (8/8 * 2/8 + 4/4 * 1/4) / 2 = 0.25; n1: (4/8 * 2/8 + 2/4 * 1/4) / 2 = 0.125, cut to hundredths of the rest
    assert dot_product.score(fleet, ask(2, 1_000)).tolist() == [750_000, 870_000]


def test_a_large_ask_goes_where_less_is_free_and_a_tiny_one_to_the_first() -> None:
    fleet = fleet_of(node(8), node(8))
    take(fleet, 1, ask(4))
    assert best(fleet, ask(4), "dot_product") == 1
    fleet = fleet_of(node(800), node(800))
    take(fleet, 1, ask(4))
    assert best(fleet, ask(4), "dot_product") == 0


# what is lost


def kind_of(*shapes: tuple[Shape, int], model: str = "") -> DeviceClass:
    return device_class(WorkloadMix(shapes, shapes), model)


def test_an_instance_that_cannot_run_loses_all_and_one_that_can_loses_devices_with_too_little_left() -> None:
    kind = kind_of(
        (Shape(cpu=4_000, gpu_milli=500, gpu_count=1), 3), (Shape(cpu=4_000, gpu_milli=1_000, gpu_count=2), 1)
    )
    assert kind.lost_now(FreeResources(4_000, 0, (1_000, 1_000))) == 0
    assert kind.lost_now(FreeResources(4_000, 0, (1_000, 300))) == 3 * 300 + 1_300  # no two whole ones
    assert kind.lost_now(FreeResources(3_999, 0, (1_000, 300))) == 4 * 1_300


def test_work_without_gpu_and_work_for_other_models_can_use_no_gpu() -> None:
    shapes = ((Shape(cpu=1_000), 2), (Shape(gpu_milli=1_000, gpu_count=1, gpu_models=("T4",)), 5))
    assert kind_of(*shapes, model="A10").lost_now(FreeResources(9_000, 0, (1_000,))) == 7_000
    assert kind_of(*shapes, model="T4").lost_now(FreeResources(9_000, 0, (1_000,))) == 2_000


def test_what_is_left_over_in_the_end_is_the_mean_over_what_may_come() -> None:
    kind = kind_of((Shape(gpu_milli=500, gpu_count=1), 1), (Shape(gpu_milli=300, gpu_count=1), 3))
    assert kind.leftover[299] == 299  # nothing fits
    assert kind.leftover[300] == 0
    assert kind.leftover[499] == 199
    assert kind.leftover[500] == (1 * 0 + 3 * 200) // 4
    assert kind.leftover[800] == (1 * 0 + 3 * 150) // 4  # 500 leaves 300, which is used up; 300 leaves 500
    assert kind.leftover[1_000] == 0  # a whole one is of use to any instance


def test_lost_late_counts_leftovers_for_those_that_can_run() -> None:
    kind = kind_of((Shape(cpu=2_000, gpu_milli=700, gpu_count=1), 1), (Shape(gpu_milli=300, gpu_count=1), 1))
    assert kind.lost_late(FreeResources(2_000, 0, (1_000, 200))) == 2 * 200
    assert kind.lost_late(FreeResources(1_000, 0, (1_000, 200))) == 1 * 1_200 + 1 * 200
    assert kind.lost_late(FreeResources(1_000, 0, (400,))) == 1 * 400 + 1 * 100


# fgd


def test_fgd_is_a_sigmoid_of_the_gain_in_whole_hundredths() -> None:
    typical = typical_of([(ask(1, 1_000), 1)])
    fleet = fleet_of(node(8, 1), node(1, 2), typical=typical)
    # n0: nothing is lost before or after. n1: its core goes, so the other GPU is lost: 100 / (1 + e) = 26.8
    assert fgd.score(fleet, ask(1, 1_000)).tolist() == [50 * SCORE_MAX // 100, 26 * SCORE_MAX // 100]


def test_fgd_puts_a_share_on_the_device_it_completes() -> None:
    typical = typical_of([(ask(1, 500), 1), (ask(1, 1_000), 9)])
    fleet = fleet_of(node(8, 3), typical=typical)
    take(fleet, 0, ask(1, 500), 2)
    assert fgd.devices(fleet, ask(1, 500), 0) == (2,)
    assert fgd.devices(fleet, ask(1, 1_000, 2), 0) == (0, 1)


def test_with_nothing_typical_the_ask_itself_is() -> None:
    fleet = fleet_of(node(8, 2), node(8, 2))
    take(fleet, 1, ask(6))
    assert best(fleet, ask(2, 1_000), "fgd") == 0  # on n1 the second GPU would be left without cores
    assert best(fleet, ask(2, 1_000), "balanced") == 0


# balanced


def test_balanced_fills_nodes_in_order_where_nothing_is_lost() -> None:
    fleet = fleet_of(node(32, 4), node(32, 4), typical=typical_of([(ask(4, 1_000), 1)]))
    for _ in range(4):
        row = best(fleet, ask(4, 1_000), "balanced")
        take(fleet, row, ask(4, 1_000), *balanced.devices(fleet, ask(4, 1_000), row))
    assert fleet.used["gpu"].tolist() == [4_000, 0]


def test_balanced_keeps_cores_beside_free_gpus() -> None:
    fleet = fleet_of(node(8, 4), node(32, 1), typical=typical_of([(ask(2, 1_000), 3), (ask(8), 1)]))
    assert best(fleet, ask(8), "balanced") == 1


def test_balanced_completes_a_device_rather_than_leaving_an_unusable_rest() -> None:
    typical = typical_of([(ask(1, 700), 1), (ask(1, 300), 1)])
    fleet = fleet_of(node(8, 1), node(8, 1), node(8, 1), typical=typical)
    take(fleet, 1, ask(1, 300), 0)  # 700 may still come here
    take(fleet, 2, ask(1, 700), 0)
    assert best(fleet, ask(1, 300), "balanced") == 2


def test_a_model_that_much_work_must_have_is_left_to_it() -> None:
    typical = typical_of([(ask(1, 1_000, models=("T4",)), 1), (ask(1, 1_000), 1)])
    fleet = fleet_of(node(8, 2, "T4"), node(8, 2, "G2"), typical=typical)
    assert prices(fleet)[1].tolist()[:2] == [1_000, 0]  # it asks for half of four GPUs, and there are two
    assert best(fleet, ask(1, 1_000), "balanced") == 1
    assert best(fleet, ask(1, 1_000), "fgd") == 1


def test_without_gpus_balanced_is_tightest_in_what_is_scarcest() -> None:
    typical = typical_of([(ask(1, memory=8), 1)])
    fleet = fleet_of(node(64, memory=128), node(64, memory=128), node(64, memory=128), typical=typical)
    assert scarcest(fleet, ask(1, memory=1)) == "memory"
    take(fleet, 0, ask(40, memory=8))
    take(fleet, 1, ask(1, memory=64))
    assert best(fleet, ask(1, memory=1), "balanced") == 1


def test_what_is_scarcest_goes_by_how_much_of_each_shape_there_is() -> None:
    cores, bytes_ = ask(32, memory=1), ask(1, memory=32)
    nodes = [node(64, memory=64)] * 2
    assert scarcest(fleet_of(*nodes, typical=typical_of([(cores, 60), (bytes_, 40)])), ask(1)) == "cpu"
    assert scarcest(fleet_of(*nodes, typical=typical_of([(cores, 40), (bytes_, 60)])), ask(1)) == "memory"
    rare = typical_of([(ask(1, memory=1), 99), (ask(1, memory=64), 1)])  # not typical, but it is what runs out
    assert scarcest(fleet_of(node(64, memory=63), typical=rare), ask(1)) == "memory"


def test_work_without_gpu_rather_goes_where_there_are_none() -> None:
    fleet = fleet_of(node(8, 2, "T4"), node(8), typical=typical_of([(ask(1, 1_000), 1)]))
    assert best(fleet, ask(2), "balanced") == 1


# what is typical


def test_typical_are_the_commonest_shapes_that_make_up_95_of_100() -> None:
    common, rare = ask(1, 500), ask(2, 1_000)
    typical = typical_of([(rare, 5), (common, 95)])
    assert typical.shapes == ((shape_of(common), 95),)
    assert typical.asked == ((shape_of(common), 95), (shape_of(rare), 5))
    assert typical_of([(rare, 6), (common, 94)]).shapes == ((shape_of(common), 94), (shape_of(rare), 6))
    assert typical_of([]).shapes == ()


def test_asks_of_one_shape_count_together() -> None:
    twice = typical_of([(ask(1, 500), 1), (Ask(ask(1, 500).resources, pools=("a",), gpu_milli=500, gpu_count=1), 2)])
    assert twice.shapes == ((shape_of(ask(1, 500)), 3),)


# all rows like one

MODELS = st.sampled_from(["", "T4", "G2"])
NODES = st.builds(node, st.integers(0, 16), st.integers(0, 4), MODELS, st.integers(0, 9))
ASKS = st.builds(
    ask,
    st.integers(0, 6),
    st.sampled_from([0, 50, 320, 470, 810, 1_000]),
    st.just(1),
    st.sampled_from([(), (), ("T4",), ("G2", "T4")]),
    st.integers(0, 4),
) | st.builds(ask, st.integers(0, 6), st.just(1_000), st.integers(1, 4))


@pytest.mark.parametrize("name", sorted(SCORERS))
@given(
    st.lists(NODES, min_size=1, max_size=6),
    st.lists(st.tuples(ASKS, st.integers(1, 9)), max_size=6),
    st.lists(st.tuples(st.integers(0, 5), ASKS), max_size=12),
    ASKS,
)
def test_one_row_scores_like_all_rows(
    name: str, nodes: list[Facts], asked: list[tuple[Ask, int]], taken: list[tuple[int, Ask]], wanted: Ask
) -> None:
    fleet = fleet_of(*nodes, typical=typical_of(asked))
    strategy = STRATEGIES[name]
    for row, what in taken:
        fits = row < len(nodes) and all((fleet.free(resource)[row] >= amount) for resource, amount in what.resources)
        if fits and sum(fleet.devices[row] >= what.gpu_milli) >= what.gpu_count:
            take(fleet, row, what, *strategy.devices(fleet, what, row))
    scores = SCORERS[name].score(fleet, wanted).tolist()
    assert scores == [SCORERS[name].score_one(fleet, wanted, row) for row in range(len(fleet))]
    assert all(0 <= score <= SCORE_MAX for score in scores)
    assert int(fleet.devices.min(initial=0)) >= 0
