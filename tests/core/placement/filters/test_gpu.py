"""GPUs: whole devices or a share of one, by model; which ones were given is known, and they come back."""

import pytest

from roost.model.errors import Invalid
from tests.core.fleet_builder import FleetBuilder
from tests.core.scene import Scene, job


def test_whole_devices_are_the_first_free_ones() -> None:
    builder = FleetBuilder("a", cpu=64, more={"gpu": 4_000})
    assert builder.place("x", resources={"gpu": 1}) == "a"
    assert builder.place("y", resources={"gpu": 2}) == "a"
    assert (builder.taken("x").devices, builder.taken("y").devices) == ((0,), (1, 2))
    assert builder.place("z", resources={"gpu": 2}) == ""
    assert builder.blockers("z", resources={"gpu": 2}) == {
        "resources: needs 2 gpu, at most 1 gpu free": 1,
        "gpu: needs 2 whole, at most 1 wholly free": 1,
    }
    builder.end("x")
    assert builder.place("z", resources={"gpu": 2}) == "a"
    assert builder.taken("z").devices == (0, 3)


def test_a_share_goes_to_the_tightest_device_that_has_it_left() -> None:
    builder = FleetBuilder("a", cpu=64, more={"gpu": 3_000})
    given = []
    for share in (0.5, 0.7, 0.3, 0.4, 0.2, 0.1):
        assert builder.place("x", resources={"gpu": share}) == "a"
        given.append(builder.taken("x").devices)
    assert given == [(0,), (1,), (1,), (0,), (2,), (0,)]
    assert builder.fleet.devices.tolist() == [[0, 0, 800]]


def test_a_share_never_spans_devices_and_a_shared_device_is_not_given_whole() -> None:
    builder = FleetBuilder("a", cpu=64, more={"gpu": 2_000})
    assert builder.places("x", 3, resources={"gpu": 0.6}) == ["a", "a", ""]
    assert builder.fleet.free("gpu").tolist() == [800]
    assert builder.place("y", resources={"gpu": "500m"}) == ""
    assert builder.blockers("y", resources={"gpu": "500m"}) == {
        "gpu: needs 0.5 of one device, at most 0.4 of one is free": 1,
    }
    builder.end("x")
    assert builder.place("y", resources={"gpu": 1}) == "a"
    assert builder.taken("y").devices == (0,)
    assert builder.place("z", resources={"gpu": 0.4}) == "a"
    assert builder.taken("z").devices == (1,)


def test_models_that_are_named_are_the_only_ones() -> None:
    builder = FleetBuilder("none")
    builder.node("old", cpu=8, more={"gpu": 1_000}, gpu_model="T4")
    builder.node("new", cpu=8, more={"gpu": 1_000}, gpu_model="NVIDIA A100-SXM4-80GB")
    one = {"resources": {"gpu": 1}}
    assert builder.place("x", gpu_model="NVIDIA A100-SXM4-80GB", **one) == "new"
    assert builder.place("x", gpu_model="NVIDIA A100-SXM4-80GB", **one) == ""
    assert builder.place("y", gpu_model=["V100", "T4"], **one) == "old"
    assert builder.blockers("y", gpu_model=["V100", "P4"], **one)["gpu_model: has no P4 or V100"] == 3
    assert builder.place("z", require=["gpu_model.contains('A100')"]) == "new"


def test_an_instance_that_asks_for_none_minds_none() -> None:
    builder = FleetBuilder("a", more={"gpu": 1_000})
    assert builder.place("x", resources={"gpu": 1}) == "a"
    assert builder.place("y", resources={"cpu": 1, "gpu": 0}) == "a"
    assert builder.taken("y").devices == ()


def test_a_node_that_comes_back_with_fewer_devices_gives_none_away_twice() -> None:
    builder = FleetBuilder("a", cpu=16, more={"gpu": 3_000})
    assert builder.places("x", 3, resources={"gpu": 1}) == ["a", "a", "a"]
    builder.node("a", cpu=16, more={"gpu": 2_000})
    for _ in range(2):
        builder.end("x")
    assert builder.place("y", resources={"gpu": 1}) == "a"
    assert builder.taken("y").devices == (0,)
    assert builder.place("y", resources={"gpu": 1}) == "", "the third of its old devices is still in use"
    builder.end("x")
    assert builder.place("y", resources={"gpu": 1}) == "a"
    assert builder.taken("y").devices == (1,)


@pytest.mark.parametrize(
    ("amount", "message"),
    [(1.5, "whole devices, or for a share of one"), (257, "0 to 256 devices"), (-1, ""), ("lots", "")],
)
def test_amounts_that_make_no_sense_are_refused(amount: object, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        FleetBuilder("a").place("x", resources={"gpu": amount})
    assert refused.value.path == "resources.gpu"
    assert message in refused.value.message


def test_devices_are_part_of_the_order_and_survive_a_restart() -> None:
    scene = Scene()
    scene.hello("a", cpu=16, more={"gpu": 2_000})
    scene.submit(job("x", resources={"gpu": 1}), job("y", resources={"gpu": 0.5}))
    assert [scene.instance(name).devices for name in ("x.0", "y.0")] == [(0,), (1,)]
    assert sorted(run.devices for run in scene.runs.values()) == [(0,), (1,)]
    scene.restart()
    scene.hello("a", "x.0", "y.0", cpu=16, more={"gpu": 2_000})
    scene.submit(job("z", resources={"gpu": 0.5}))
    assert scene.instance("z.0").devices == (1,)
    scene.running("x.0")
    scene.ended("x.0")
    scene.submit(job("w", resources={"gpu": 1}))
    assert scene.instance("w.0").devices == (0,)


def test_devices_of_an_attempt_without_an_owner_are_not_free() -> None:
    scene = Scene()
    scene.hello("a", cpu=16, more={"gpu": 1_000})
    scene.submit(job("x", resources={"gpu": 1}, fenced=False))
    run, report = scene.as_ordered("x.0")
    scene.part("a")
    scene.cancel("x.0")
    scene.hello("a", (run, report), cpu=16, more={"gpu": 1_000})
    scene.submit(job("y", resources={"gpu": 1}))
    assert scene.counts("y") == {"queued": 1}
    scene.report("a", report.__class__(report.token, "ended", cause="stopped"))
    assert scene.instance("y.0").devices == (0,)
