"""Volumes and engines: only nodes that offer them can take a container."""

from tests.core.fleet_builder import FleetBuilder

BOTH = ("process", "container")


def test_a_container_goes_where_all_its_volumes_are() -> None:
    builder = FleetBuilder()
    builder.node("a", drivers=BOTH, volumes=("data",))
    builder.node("b", drivers=BOTH, volumes=("data", "scratch:rw"))
    builder.node("c", volumes=("data", "scratch:rw"))
    read_only = {"to": "/d", "read_only": True}
    assert builder.place("x", image="bb", volumes={"data": read_only, "scratch": "/s"}) == "b"
    assert builder.place("y", image="bb", volumes={"scratch": {"to": "/s", "read_only": True}}) == "b"
    assert builder.blockers("z", image="bb", volumes={"data": "/d", "other": "/o"}) == {
        "driver: offers no containers": 1,
        "volume: has no data to write to and no other to write to": 3,
    }
