"""From a document and an order to a virtual machine: its files, disks, network and seed."""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roost.drivers.container.images import ImageUnavailable
from roost.drivers.qemu.host import MachineHost, MachineWanted, QemuProgram
from roost.drivers.qemu.request import NoQemu, find_files, instance_of, machine, machine_name, sources_of
from roost.drivers.qemu.seed import seed
from roost.model.errors import Invalid
from roost.model.protocol import Run
from roost.model.records.files import InputProblem, RunInput
from roost.model.records.secret import Handed, Hidden
from roost.model.spec.document import Document, encode_document, read_document
from roost.ports.driver import Machine, MachineDisk
from tests.drivers.qemu.test_images import LINUX, qcow2

QEMU = QemuProgram("/usr/bin/qemu", "7.2")
DIGEST = "sha256:" + "1" * 64


def given(vm: dict[str, Any], **fields: Any) -> tuple[Document, Run]:
    resources = {"cpu": 1.5, "memory": "96MiB"} | fields.pop("resources", {})
    document = read_document({"name": "db", "kind": "vm", "vm": vm, "resources": resources} | fields)
    document = msgspec.msgpack.decode(encode_document(document), type=Document)  # as a node gets it
    ports = tuple(range(20_001, 20_001 + len(document.ports)))
    inputs = (RunInput("image", DIGEST),) if str(vm.get("image", "")).startswith("blob:") else ()
    return document, Run(7, "default/db", 2, 1, b"", serial=3, ports=ports, inputs=inputs)


def host(tmp_path: Path, **more: Any) -> MachineHost:
    (tmp_path / "disk.img").write_bytes(qcow2(1 << 30))
    (tmp_path / "linux").write_bytes(LINUX)
    images = {"debian": str(tmp_path / "disk.img"), "tiny": str(tmp_path / "linux")}
    return MachineHost(**{"directory": "/a/machines", "images": images, "bridges": {"lan": "br0"}, "qemu": QEMU} | more)


def made(tmp_path: Path, vm: dict[str, Any], **fields: Any) -> Machine:
    document, run = given(vm, **fields)
    return machine(host(tmp_path), document, run, str(tmp_path / "work"))


def test_a_machine_is_made_of_its_document_and_what_the_node_has(tmp_path: Path) -> None:
    network = {"mode": "user", "restrict": True, "forward": {"ssh": 22}}
    disks = [{"name": "data", "size": "2GiB", "retention": "1h"}]
    vm = {"image": "debian", "disk_size": "4GiB", "disks": disks, "network": network}
    found = made(tmp_path, vm, ports={"ssh": 0})
    assert (found.dir, found.program) == ("/a/machines/default~db.3.2", "/usr/bin/qemu")
    assert (found.memory, found.processors, found.accel) == (96 << 20, 2, "tcg")
    assert found.disks == [
        MachineDisk("root", 4 << 30, str(tmp_path / "disk.img")),
        MachineDisk("data", 2 << 30, retention_ms=3_600_000),
    ]
    assert (found.network.mode, found.network.restrict, found.network.forward) == ("user", True, [(20_001, 22)])
    assert (found.has_console, found.has_seed, found.power, found.kernel) == (True, False, "running", "")


def test_names_and_addresses_stay_with_an_instance(tmp_path: Path) -> None:
    document, run = given({"image": "debian"})
    again = msgspec.structs.replace(run, token=8, attempt=2)
    other = msgspec.structs.replace(run, index=1)
    made = [machine(host(tmp_path), document, item, "/w").network.mac for item in (run, again, other)]
    assert made[0] == made[1] != made[2] and made[0].startswith("52:54:00:")
    assert machine_name(run) == machine_name(again) != machine_name(other)
    assert [instance_of(machine_name(item)) for item in (run, other)] == [("default/db", 3, 2), ("default/db", 3, 1)]
    assert [instance_of(name) for name in ("lost+found", "a.b.c", "a~b.1", "a.1.2", f"a~b.1.{10**18}")] == [None] * 5


def test_the_disk_of_an_image_takes_the_room_that_was_asked_for(tmp_path: Path) -> None:
    assert made(tmp_path, {"image": "debian"}).disks[0].size == 0
    disks = [{"name": "data", "size": "2GiB"}]
    found = made(tmp_path, {"image": "debian", "disks": disks}, resources={"disk": "8GiB"})
    assert found.disks[0].size == 6 << 30


def test_kvm_is_used_where_it_works_unless_the_document_says_another(tmp_path: Path) -> None:
    document, run = given({"image": "debian"})
    has_kvm = msgspec.structs.replace(QEMU, has_kvm=True)
    assert machine(host(tmp_path, qemu=has_kvm), document, run, "/w").accel == "kvm"
    document, run = given({"image": "debian", "accel": "tcg"})
    assert machine(host(tmp_path, qemu=has_kvm), document, run, "/w").accel == "tcg"


@pytest.mark.parametrize(
    "vm, says",
    [
        ({"image": "debian", "accel": "kvm"}, "vm.accel: this node has no KVM that works"),
        ({"image": "debian", "firmware": "uefi"}, "vm.firmware: this node has no UEFI firmware"),
        ({"image": "debian", "network": {"mode": "bridge", "bridge": "wan"}}, "this node has no bridge wan"),
    ],
)
def test_what_a_node_does_not_have_is_named(tmp_path: Path, vm: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        made(tmp_path, vm)


def test_a_node_without_qemu_refuses(tmp_path: Path) -> None:
    document, run = given({"image": "debian"})
    with pytest.raises(NoQemu):
        machine(host(tmp_path, qemu=None), document, run, "/w")


def found_files(tmp_path: Path, vm: dict[str, Any]) -> Machine:
    document, run = given(vm)
    wanted = machine(host(tmp_path), document, run, str(tmp_path / "work"))
    assert document.vm is not None
    return find_files(MachineWanted(wanted, sources_of(document.vm), "amd64"))


def test_images_of_the_node_and_of_the_project_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "work" / "image"
    folder.mkdir(parents=True)
    (folder / "mine.qcow2").write_bytes(qcow2(1 << 20))
    found = found_files(tmp_path, {"image": "blob:mine", "kernel": "tiny", "cmdline": "quiet"})
    assert found.disks == [MachineDisk("root", 0, f"{folder}/mine.qcow2", DIGEST)]
    assert (found.kernel, found.cmdline) == (str(tmp_path / "linux"), "quiet")


@pytest.mark.parametrize("vm", [{"image": "absent"}, {"kernel": "tiny", "initrd": "absent"}])
def test_an_image_that_the_node_offered_and_does_not_have_is_named(tmp_path: Path, vm: dict[str, Any]) -> None:
    with pytest.raises(ImageUnavailable) as caught:
        found_files(tmp_path, vm)
    assert (caught.value.image, caught.value.problem) == ("absent", InputProblem.IMAGE_GONE)


# the seed


def texts(hidden: Hidden) -> dict[str, str]:
    return {name: base64.b64decode(text).decode() for name, text in hidden.items()}


def test_a_seed_has_secrets_in_their_places() -> None:
    users = [{"name": "admin", "hashed_passwd": {"secret": "password"}}]
    block = {"user_data": {"users": users}, "meta_data": {"local-hostname": "h"}, "network": {"version": 2}}
    document, run = given({"image": "debian", "cloud_init": block})
    found = texts(seed(document, run, Handed({"password": b"$6$x"})))
    head, _, body = found["user-data"].partition("\n")
    assert (head, json.loads(body)) == ("#cloud-config", {"users": [{"name": "admin", "hashed_passwd": "$6$x"}]})
    assert json.loads(found["meta-data"]) == {"instance-id": "default~db.3.2", "local-hostname": "h"}
    assert json.loads(found["network-config"]) == {"version": 2}


def test_user_data_may_be_a_text_or_a_secret() -> None:
    document, run = given({"image": "debian", "cloud_init": {"user_data": "#!/bin/sh\necho"}})
    assert texts(seed(document, run, None))["user-data"] == "#!/bin/sh\necho"
    document, run = given({"image": "debian", "cloud_init": {"user_data": {"secret": "all"}}})
    assert texts(seed(document, run, Handed({"all": b"#!x"})))["user-data"] == "#!x"


def test_a_machine_without_cloud_init_has_no_seed() -> None:
    assert seed(*given({"image": "debian"}), None) == {}


@pytest.mark.parametrize(
    "handed, says",
    [
        (None, "secret all cannot be opened"),
        (Handed({}, "no key"), "no key"),
        (Handed({"all": b"\xff"}), "secret all is not text"),
    ],
)
def test_a_secret_that_is_not_to_be_had_is_named(handed: Handed | None, says: str) -> None:
    document, run = given({"image": "debian", "cloud_init": {"user_data": {"secret": "all"}}})
    with pytest.raises(Invalid, match=says):
        seed(document, run, handed)
