"""What a document says about virtual machines: what it means, and each refusal with its path."""

from typing import Any

import pytest

from roost.model.errors import Invalid
from roost.model.limits import DEFAULT_VM_GRACE_MS
from roost.model.records.files import FileSet, Input
from roost.model.spec.document import check_document, read_document, secrets_in

MEMORY = {"memory": "64MiB"}


def document(vm: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": "db", "kind": "vm", "resources": MEMORY, "vm": {"image": "debian"} | (vm or {})} | fields


def taken(vm: dict[str, Any] | None = None, **fields: Any) -> Any:
    return check_document(read_document(document(vm, **fields)))


def refusals(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(Invalid) as caught:
        check_document(read_document(raw))
    return [error.path for error in caught.value.every]


def test_a_machine_stays_on_its_node_and_has_a_minute_to_shut_down() -> None:
    policy = taken()
    assert (policy.ask.driver, policy.when_lost, policy.grace_ms) == ("qemu", "pin", DEFAULT_VM_GRACE_MS)
    assert policy.ask.vm == ("image/debian",)
    assert policy.preemptible is False
    assert policy.inputs == ()


def test_a_machine_needs_what_its_operator_has_named() -> None:
    network = {"mode": "bridge", "bridge": "lan"}
    vm = {"kernel": "linux", "initrd": "start", "firmware": "uefi", "accel": "kvm", "network": network}
    assert taken(vm).ask.vm == (
        "accel/kvm", "bridge/lan", "firmware/uefi", "image/debian", "image/linux", "image/start",
    )  # fmt: skip


def test_named_files_of_the_project_are_inputs() -> None:
    policy = taken({"image": "blob:disk", "kernel": "linux", "initrd": "blob:start"})
    assert policy.inputs == (Input("image", FileSet("blob:disk")), Input("initrd", FileSet("blob:start")))
    assert policy.ask.vm == ("image/linux",)


@pytest.mark.parametrize(
    ("vm", "disk", "room"),
    [
        ({}, None, None),
        ({}, "5GiB", 5 << 30),
        ({"disk_size": "3GiB"}, None, 3 << 30),
        ({"disk_size": "3GiB", "disks": [{"name": "data", "size": "1GiB"}]}, None, 4 << 30),
        ({"disks": [{"name": "data", "size": "1GiB"}]}, "2GiB", 2 << 30),
    ],
)
def test_the_room_of_its_disks(vm: dict[str, Any], disk: str | None, room: int | None) -> None:
    resources = MEMORY if disk is None else MEMORY | {"disk": disk}
    assert dict(taken(vm, resources=resources).ask.resources).get("disk") == room


def test_secrets_in_cloud_init_by_their_fields() -> None:
    seed = {
        "user_data": {"users": [{"name": "root", "passwd": {"secret": "root-password"}}]},
        "meta_data": {"token": {"secret": "join"}},
    }
    read = read_document(document({"cloud_init": seed}))
    assert secrets_in(read) == {
        "vm.cloud_init.user_data.users[0].passwd": "root-password",
        "vm.cloud_init.meta_data.token": "join",
    }
    whole = read_document(document({"cloud_init": {"user_data": {"secret": "all"}}}))
    assert secrets_in(whole) == {"vm.cloud_init.user_data": "all"}
    check_document(whole)


def deep(levels: int) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("vm", "path"),
    [
        ({"image": ""}, "vm.image"),
        ({"image": "../etc/shadow"}, "vm.image"),
        ({"image": "a,readonly=off"}, "vm.image"),
        ({"image": "blob:"}, "vm.image"),
        ({"image": "blob:a/b"}, "vm.image"),
        ({"kernel": "/boot/vmlinuz"}, "vm.kernel"),
        ({"initrd": "start"}, "vm.initrd"),
        ({"cmdline": "quiet"}, "vm.cmdline"),
        ({"kernel": "k", "cmdline": "a\nb"}, "vm.cmdline"),
        ({"kernel": "k", "cmdline": "x" * 2_001}, "vm.cmdline"),
        ({"image": "", "kernel": "k", "disk_size": "1GiB"}, "vm.disk_size"),
        ({"disk_size": "1KiB"}, "vm.disk_size"),
        ({"disk_size": "9000PiB"}, "vm.disk_size"),
        ({"disk_size": "-1GiB"}, "vm.disk_size"),
        ({"disks": [{"name": "a,b", "size": "1GiB"}]}, "vm.disks[0].name"),
        ({"disks": [{"name": "root", "size": "1GiB"}]}, "vm.disks[0].name"),
        ({"disks": [{"name": "a", "size": "1GiB"}, {"name": "a", "size": "1GiB"}]}, "vm.disks[1].name"),
        ({"disks": [{"name": "a", "size": "0"}]}, "vm.disks[0].size"),
        ({"disks": [{"name": "a"}]}, "vm.disks[0].size"),
        ({"disks": [{"name": "a", "size": "1GiB", "retention": "soon"}]}, "vm.disks[0].retention"),
        ({"disks": [{"name": f"d{n}", "size": "1GiB"} for n in range(9)]}, "vm.disks"),
        ({"firmware": "coreboot"}, "vm.firmware"),
        ({"accel": "hvf"}, "vm.accel"),
        ({"console": "vga"}, "vm.console"),
        ({"network": {"mode": "tap"}}, "vm.network.mode"),
        ({"network": {"mode": "bridge"}}, "vm.network.bridge"),
        ({"network": {"bridge": "lan"}}, "vm.network.bridge"),
        ({"network": {"mode": "bridge", "bridge": "lan,script=x"}}, "vm.network.bridge"),
        ({"network": {"mode": "none", "restrict": True}}, "vm.network.restrict"),
        ({"network": {"mode": "none", "forward": {"ssh": 22}}}, "vm.network.forward"),
        ({"network": {"forward": {"ssh": 22}}}, "vm.network.forward.ssh"),
        ({"network": {"hostname": "x"}}, "vm.network.hostname"),
        ({"cloud_init": {"user_data": "x" * 66_000}}, "vm.cloud_init"),
        ({"cloud_init": {"user_data": 5}}, "vm.cloud_init.user_data"),
        ({"cloud_init": {"user_data": deep(20)}}, "vm.cloud_init.user_data" + ".a" * 16),
        ({"cloud_init": {"user_data": {"a": "\ud800"}}}, "vm.cloud_init.user_data.a"),
        ({"cloud_init": {"meta_data": {"a": {"secret": "no/name"}}}}, "vm.cloud_init.meta_data.a.secret"),
        ({"cloud_init": {"vendor_data": ""}}, "vm.cloud_init.vendor_data"),
        ({"qemu_args": ["-x"]}, "vm.qemu_args"),
    ],
)
def test_refused_blocks(vm: dict[str, Any], path: str) -> None:
    assert refusals(document(vm)) == [path]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"vm": None}, "vm"),
        ({"kind": "job", "command": "true"}, "vm"),
        ({"resources": {"cpu": 1}}, "resources.memory"),
        ({"resources": {"memory": "1MiB"}}, "resources.memory"),
        ({"resources": MEMORY | {"cpu": 256}}, "resources.cpu"),
        ({"resources": MEMORY | {"gpu": 1}}, "resources.gpu"),
        ({"command": "true"}, "command"),
        ({"env": {"A": "b"}}, "env"),
        ({"outputs": ["a"]}, "outputs"),
        ({"inputs": [{"from": "blob:a"}]}, "inputs"),
        ({"stderr": "separate"}, "stderr"),
        ({"image": "python:3.12"}, "image"),
        ({"health": {"http": "/"}, "ports": {}}, "health"),
        ({"ports": {"ssh": 0}}, "ports.ssh"),
        ({"vm": {"image": "x", "disk_size": "2GiB"}, "resources": MEMORY | {"disk": "1GiB"}}, "resources.disk"),
    ],
)
def test_refused_fields(fields: dict[str, Any], path: str) -> None:
    assert path in refusals(document() | fields)


def test_ports_lead_into_the_machine() -> None:
    policy = taken({"network": {"forward": {"ssh": 22}, "restrict": True}}, ports={"ssh": 0})
    assert policy.ask.ports == (0,)
