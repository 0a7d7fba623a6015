"""Virtual machines are placed only where their images, bridges and firmware are."""

from tests.core.fleet_builder import FleetBuilder

BOTH = ("process", "qemu")
MEMORY = {"memory": "1GiB"}


def test_a_machine_goes_where_its_image_and_bridge_are() -> None:
    builder = FleetBuilder()
    builder.node("a", drivers=BOTH, memory="4GiB", vm=("image/debian",))
    builder.node("b", drivers=BOTH, memory="4GiB", vm=("bridge/lan", "image/debian"))
    builder.node("c", memory="4GiB", vm=("bridge/lan", "image/debian"))
    vm = {"image": "debian", "network": {"mode": "bridge", "bridge": "lan"}}
    assert builder.place("x", kind="vm", vm=vm, resources=MEMORY) == "b"
    assert builder.blockers("y", kind="vm", vm={"image": "other"} | {"firmware": "uefi"}, resources=MEMORY) == {
        "driver: has no qemu driver": 1,
        "vm: has no firmware uefi and no image other": 3,
    }


def test_a_disk_that_no_node_has_room_for() -> None:
    builder = FleetBuilder()
    builder.node("a", drivers=BOTH, memory="4GiB", disk="10GiB", vm=("image/debian",))
    vm = {"image": "debian", "disks": [{"name": "data", "size": "11GiB"}]}
    blockers = builder.blockers("x", kind="vm", vm=vm, resources=MEMORY)
    assert blockers["capacity: needs 11GiB disk, the largest has 10GiB disk"] == 1
