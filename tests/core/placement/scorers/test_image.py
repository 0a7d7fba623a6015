"""Nodes that have the image of a container are preferred, and the decision says so."""

import pytest

from roost.core.placement.scorers import SCORE_MAX
from roost.model.events import HeartbeatsReceived
from roost.model.protocol import Usage
from roost.model.reasons.attempts import PlacedWithImage
from roost.model.records.node import Facts
from roost.model.spec.runs.container import image_key
from tests.core.fleet_builder import FleetBuilder
from tests.core.scene import Scene, facts_of, job

IMAGE = "docker.io/library/python:3.12"


def offer() -> Facts:
    return facts_of(drivers=("process", "container"))


def builder(*with_image: str, strategy: str = "least_loaded") -> FleetBuilder:
    made = FleetBuilder("a", "b", "c", strategy=strategy, drivers=("process", "container"))
    for name in with_image:
        has(made, name, IMAGE)
    return made


def has(made: FleetBuilder, node: str, *images: str) -> None:
    made.fleet.measure(node, Usage(images=tuple(map(image_key, images))), 0)


@pytest.mark.parametrize("strategy", ["least_loaded", "best_fit", "first_fit", "round_robin", "random"])
def test_a_node_with_the_image_is_taken(strategy: str) -> None:
    made = builder("b", strategy=strategy)
    assert made.place("work", image="python:3.12", resources={"cpu": "100m"}) == "b"
    assert made.place("plain", resources={"cpu": "100m"}) != "b" or strategy in ("best_fit", "random")


def test_it_is_a_preference_among_others() -> None:
    """An idle node is better than one that has the image and is nearly full."""
    made = builder("b")
    quarter = {"cpu": 1, "memory": "4GiB"}
    assert made.places("work", 5, image="python:3.12", resources=quarter) == ["b", "b", "b", "a", "c"]


def test_images_come_and_go_between_changes_of_nodes() -> None:
    made = builder()
    assert made.place("first", image="python:3.12", resources={"cpu": "10m"}) == "a"
    has(made, "c", IMAGE)
    assert made.place("second", image="python:3.12", resources={"cpu": "10m"}) == "c"
    has(made, "c")
    assert made.place("third", image="python:3.12", resources={"cpu": "10m"}) == "b"
    assert made.fleet.images == {}


def test_a_node_that_leaves_takes_its_images_along() -> None:
    made = builder("b")
    made.fleet.leave("b")
    assert made.fleet.images == {}


def test_the_decision_says_who_has_the_image() -> None:
    scene = Scene()
    for name in ("a", "b"):
        scene.hello(name, facts=offer())
    scene.step(HeartbeatsReceived((), (("b", Usage(images=(image_key(IMAGE),))),)))
    scene.submit(job("work", image="python:3.12"), job("plain"))
    placed = scene.instance("work.0")
    assert placed.reason == PlacedWithImage("b", "least_loaded")
    assert placed.decision is not None and placed.decision.with_image == ("b",)
    assert placed.decision.candidates[0] == ("b", SCORE_MAX)
    other = scene.instance("plain.0").decision
    assert other is not None and other.with_image == ()
