"""What work usually asks for is learnt from what is wanted, kept over restarts, and looked at only now and then."""

from roost.core.placement.gpu.fragmentation import OFTEN_MS
from tests.core.scene import Scene, facts_of, job


def test_the_fleet_remembers_the_workload_mix() -> None:
    scene = Scene()
    for name in ("a", "b"):
        scene.hello(name, facts=facts_of(cpu=8, more={"gpu": 4_000}, gpu_model="A100"))
    half = {"cpu": 1, "gpu": "500m"}
    scene.submit(job("many", count=9, resources=half, placement={"strategy": "balanced"}), job("one"))
    assert [(shape.gpu_milli, count) for shape, count in scene.state.fleet.typical.asked] == [(500, 9), (0, 1)]
    before = scene.state.fleet.typical.shapes
    scene.restart()
    assert scene.state.fleet.typical.shapes == before


def test_it_is_not_looked_at_for_every_placement() -> None:
    scene = Scene("a", cpu=64)
    scene.submit(job("one", placement={"strategy": "fgd"}))
    layout = scene.state.fleet.layout
    scene.submit(job("two", resources={"cpu": 2}, placement={"strategy": "fgd"}))
    assert scene.state.fleet.layout == layout
    scene.wait(f"{OFTEN_MS}ms")
    scene.submit(job("three", resources={"cpu": 2}, placement={"strategy": "fgd"}))
    assert scene.state.fleet.layout > layout and len(scene.state.fleet.typical.asked) == 2


def test_an_instance_that_does_not_ask_for_it_pays_nothing() -> None:
    scene = Scene("a", cpu=64)
    scene.submit(job("one"))
    assert not scene.state.meta.typical and not scene.state.meta.typical_due_ms
