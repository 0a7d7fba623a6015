"""Ports: by number where they must be these, any where any will do; each is on a node once."""

import msgspec
import pytest

from roost.model.errors import Invalid
from roost.model.limits import PORT_ANY_FIRST
from tests.core.fleet_builder import FleetBuilder
from tests.core.scene import Scene, facts_of, job, service


def test_a_port_by_number_is_on_a_node_once() -> None:
    builder = FleetBuilder("a", "b", strategy="first_fit")
    web = {"http": 80, "tls": 443}
    assert builder.places("web", 3, ports=web) == ["a", "b", ""]
    assert builder.taken("web").ports == (80, 443)
    assert builder.blockers("other", ports={"tls": 443}) == {"ports: 443 taken": 2}
    assert builder.place("other", ports={"ssh": 22}) == "a"
    builder.end("web")
    assert builder.place("other", ports={"tls": 443}) == "a"


def test_where_any_will_do_the_first_free_ones_are_given_in_the_order_of_their_names() -> None:
    builder = FleetBuilder("a", cpu=16)
    first = PORT_ANY_FIRST
    assert builder.place("x", ports={"http": 0, "fixed": first + 1, "metrics": 0}) == "a"
    assert builder.taken("x").ports == (first, first + 1, first + 2)
    assert builder.place("y", ports={"http": 0}) == "a"
    assert builder.taken("y").ports == (first + 3,)
    builder.end("x")
    assert builder.place("y", ports={"a": 0, "b": 0}) == "a"
    assert builder.taken("y").ports == (first, first + 1)


def test_when_all_are_given_the_node_says_no() -> None:
    builder = FleetBuilder("a", cpu=16)
    builder.fleet.facts[0] = msgspec.structs.replace(builder.fleet.facts[0], port_last=PORT_ANY_FIRST + 4)
    assert builder.places("x", 3, ports={"one": 0, "two": 0}) == ["a", "a", ""]
    assert builder.blockers("x", ports={"one": 0, "two": 0}) == {"ports: all taken": 1}
    assert builder.place("y", ports={"one": 0}) == "a"
    builder.end("x")
    assert builder.place("x", ports={"one": 0, "two": 0}) == "a"


def test_nodes_that_gave_all_ports_back_are_forgotten() -> None:
    builder = FleetBuilder("a")
    builder.place("x", ports={"one": 0})
    builder.end("x")
    assert builder.fleet.ports == {}


def test_an_instance_that_asks_for_none_minds_none() -> None:
    builder = FleetBuilder("a")
    assert builder.place("x", ports={"one": 80}) == "a"
    assert builder.place("y") == "a"


@pytest.mark.parametrize(
    ("ports", "path"),
    [
        ({"http": 70_000}, "ports.http"),
        ({"http": -1}, "ports.http"),
        ({"a": 80, "b": 80}, "ports"),
        ({"a b": 80}, "ports"),
        ({f"p{number}": 0 for number in range(65)}, "ports"),
        ({"http": "80"}, "ports"),
    ],
)
def test_ports_that_make_no_sense_are_refused(ports: dict, path: str) -> None:
    with pytest.raises(Invalid) as refused:
        FleetBuilder("a").place("x", ports=ports)
    assert refused.value.path.startswith(path)


def test_ports_are_part_of_the_order_and_survive_a_restart() -> None:
    scene = Scene("a")
    scene.submit(job("x", ports={"http": 8080, "any": 0}))
    assert scene.instance("x.0").ports == (8080, PORT_ANY_FIRST)
    assert [run.ports for run in scene.runs.values()] == [(8080, PORT_ANY_FIRST)]
    scene.restart()
    scene.hello("a", "x.0")
    scene.submit(job("y", ports={"http": 8080}), job("z", ports={"any": 0}))
    assert scene.counts("y") == {"queued": 1}
    assert scene.instance("z.0").ports == (PORT_ANY_FIRST + 1,)
    scene.running("x.0")
    scene.ended("x.0")
    assert scene.instance("y.0").ports == (8080,)


def test_nodes_of_one_machine_give_out_ports_of_their_own() -> None:
    scene = Scene()
    for name, first in (("a", 20_000), ("b", 26_000)):
        facts = msgspec.structs.replace(facts_of(), port_first=first, port_last=first + 63)
        scene.hello(name, facts=facts)
    scene.submit(service("web", count=4, ports={"http": 0}, resources={"cpu": "10m"}))
    given = sorted(instance.ports[0] for instance in scene.state.instances.values())
    assert given == [20_000, 20_001, 26_000, 26_001]
    scene.submit(service("more", count=130, ports={"http": 0}, resources={"cpu": "10m"}))
    assert scene.counts("more") == {"placed": 124, "queued": 6}
