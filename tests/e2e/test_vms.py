"""Virtual machines as work: their console, power, images and ends, through server, agent, keeper and a real QEMU."""

import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from roost_lab.bench.product import Product
from roost_lab.components.guest import MEMORY

from roost.agent.config import UID_RANGE
from roost.cli.common.sending import send_paths
from roost.client.errors import ApiError
from roost.keeper.processes import started_by
from tests.components.guest import shared_guest
from tests.e2e.test_agents import agent_of, instance, is_state, kill_agent

TICKS = "echo begun; i=0; while :; do i=$((i+1)); echo tick $i; sleep 1; done"
BRIDGE = f"rtest{os.getpid()}"  # no other test of this machine has it
NET = f"10.213.{os.getpid() % 250}"  # two bridges with one network would send answers to each other's machines
GONE: list[Path] = []  # the file of the image `gone`
BOOT_S = 120  # without KVM, on a busy machine; four seconds are usual


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One node with QEMU, the images `linux` and `initrd`, and `gone`, whose file the tests remove."""
    made, folder = shared_guest(), tmp_path_factory.mktemp("images")
    GONE.append(folder / "gone")
    (folder / "gone").write_bytes(b"x")
    (folder / "arm").write_bytes(bytes(0x38) + b"ARM\x64" + bytes(1_000))
    if os.geteuid() == 0:
        subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
        subprocess.run(["ip", "addr", "add", f"{NET}.1/24", "dev", BRIDGE], check=True)
        subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
    images = f"linux={made.kernel},initrd={made.initrd},gone={folder}/gone,arm={folder}/arm"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_AGENT_QEMU", "auto")
        patch.setenv("ROOST_AGENT_ISOLATION", "")  # as on a node: QEMU has the user of the project
        patch.setenv("ROOST_AGENT_VM_IMAGES", images)
        if os.geteuid() == 0:
            patch.setenv("ROOST_AGENT_VM_BRIDGES", f"lan={BRIDGE}")
        try:
            with Product(agents=1, cpu="8", options=("--lease", "60000")) as product:
                yield product
        finally:
            subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)


def submit(product: Product, name: str, script: str = TICKS, **vm: Any) -> None:
    block = {"kernel": "linux", "initrd": "initrd", "cmdline": shared_guest().cmdline(script)} | vm
    document = {"name": name, "kind": "vm", "vm": block, "resources": {"cpu": "500m", "memory": MEMORY}}
    product.client.workloads.submit(document | {"grace": "30s", "retries": 0})


def log(product: Product, name: str) -> bytes:
    return product.client.logs.read("default", name)


def says(product: Product, name: str, text: bytes) -> None:
    product.wait_until(lambda: text in log(product, name), within_s=BOOT_S)


def is_power(product: Product, name: str, state: str) -> bool:
    found = instance(product, name).power
    return found is not None and found.state == state and not found.pending


def power(product: Product, name: str, action: str, state: str) -> None:
    product.client.vms.power("default", name, action)
    product.wait_until(lambda: is_power(product, name, state), within_s=BOOT_S)


def uids() -> range:
    """Of projects, as the agent gives them out by default."""
    first, last = map(int, UID_RANGE.split("-"))
    return range(first, last + 1)


def machines(product: Product) -> list[int]:
    """The QEMUs that this node has started."""
    found = started_by(str(product.data / "node-1"))
    return [pid for pid in found if Path(f"/proc/{pid}/comm").read_text().startswith("qemu")]


def test_the_console_is_the_log_and_a_guest_that_powers_off_is_done(product: Product) -> None:
    submit(product, "short", "echo hello; echo from the guest")
    product.client.workloads.wait([("default", "short")], timeout_s=BOOT_S)
    assert instance(product, "short").state == "succeeded", instance(product, "short").message
    assert b"hello\nfrom the guest\n" in log(product, "short").replace(b"\r", b"")
    assert machines(product) == []


def test_power_commands_reach_the_machine(product: Product) -> None:
    submit(product, "db")
    says(product, "db", b"tick 2")
    (pid,) = machines(product)
    assert os.geteuid() or os.stat(f"/proc/{pid}").st_uid in uids(), "a guest that breaks out is its project"
    power(product, "db", "pause", "paused")
    power(product, "db", "resume", "running")
    power(product, "db", "stop", "stopped")
    assert machines(product) == [] and instance(product, "db").state == "running", "it keeps its node"
    power(product, "db", "start", "running")
    product.wait_until(lambda: log(product, "db").count(b"begun") == 2, within_s=BOOT_S)
    assert instance(product, "db").attempt == 1
    product.client.workloads.cancel("default", "db")
    product.wait_until(is_state(product, "db", "cancelled"))
    assert machines(product) == []


def test_a_machine_outlives_its_agent_and_takes_commands_from_the_next(product: Product) -> None:
    submit(product, "kept")
    says(product, "kept", b"tick 1")
    (before,) = machines(product)
    kill_agent(product)
    product.wait_until(lambda: agent_of(product.pids[-1]) != 0)
    power(product, "kept", "pause", "paused")
    assert machines(product) == [before] and instance(product, "kept").attempt == 1
    product.client.workloads.cancel("default", "kept")
    product.wait_until(is_state(product, "kept", "cancelled"), within_s=BOOT_S)


def test_named_files_of_the_project_are_images(product: Product, tmp_path: Path) -> None:
    made = shared_guest()
    for name, path in (("kernel", made.kernel), ("ramdisk", made.initrd)):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(path, folder)
        sent = send_paths(product.client, {"": folder}, "default")
        product.client.named_files.set("default", name, digest=sent.digest)
    submit(product, "named", "echo from blobs", kernel="blob:kernel", initrd="blob:ramdisk")
    product.client.workloads.wait([("default", "named")], timeout_s=BOOT_S)
    assert instance(product, "named").state == "succeeded", instance(product, "named").message
    assert b"from blobs" in log(product, "named")


def test_disks_seed_and_ports_of_a_machine(product: Product, tmp_path: Path) -> None:
    """Its image comes from the project, and what it writes is there when it starts again."""
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "disk.raw").write_bytes(b"from the image\n".ljust(1 << 20, b"\0"))
    sent = send_paths(product.client, {"": tmp_path / "image"}, "default")
    product.client.named_files.set("default", "disk", digest=sent.digest)
    product.client.secrets.set("default", "word", value="s3cret-word")
    script = (
        "head -n 1 /dev/vda; echo data $(head -c 7 /dev/vdb); echo written | dd of=/dev/vdb conv=notrunc,fsync; "
        "mount -o ro /dev/vdc /mnt; cat /mnt/user-data; echo; "
        "ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; "
        "echo served > /tmp/index.html; httpd -p 80 -h /tmp; echo ready; sleep 1000"
    )
    block = {
        "kernel": "linux", "initrd": "initrd", "cmdline": shared_guest().cmdline(script), "image": "blob:disk",
        "disks": [{"name": "data", "size": "1MiB"}], "network": {"forward": {"web": 80}},
        "cloud_init": {"user_data": {"word": {"secret": "word"}}},
    }  # fmt: skip
    resources = {"cpu": "500m", "memory": MEMORY}
    document = {"name": "whole", "kind": "vm", "vm": block, "resources": resources, "ports": {"web": 0}}
    product.client.workloads.submit(document | {"grace": "30s", "retries": 0})
    says(product, "whole", b"ready")
    found = log(product, "whole").replace(b"\r", b"")
    assert b"from the image\ndata\n" in found
    assert b'#cloud-config\n{"word": "s3cret-word"}' in found
    port = instance(product, "whole").ports["web"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        assert answer.read() == b"served\n"
    power(product, "whole", "stop", "stopped")
    power(product, "whole", "start", "running")
    product.wait_until(lambda: log(product, "whole").count(b"ready") == 2, within_s=BOOT_S)
    assert b"data written" in log(product, "whole")
    product.client.workloads.cancel("default", "whole")
    product.wait_until(is_state(product, "whole", "cancelled"), within_s=BOOT_S)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes bridges and joins them")
def test_a_machine_joins_a_bridge_of_its_node(product: Product) -> None:
    script = f"ip link set eth0 up; ip addr add {NET}.2/24 dev eth0; ping -c 1 -W 60 {NET}.1; echo pinged $?"
    submit(product, "bridged", script, network={"mode": "bridge", "bridge": "lan"})
    product.client.workloads.wait([("default", "bridged")], timeout_s=BOOT_S)
    assert b"pinged 0" in log(product, "bridged"), instance(product, "bridged").message
    ports = os.listdir(f"/sys/class/net/{BRIDGE}/brif")
    assert ports == [], "its interface is gone with it"


@pytest.mark.parametrize(
    "vm, says",
    [
        ({"kernel": "absent"}, "vm: has no image absent"),
        ({"accel": "kvm"}, "vm: has no accel kvm"),
        ({"disks": [{"name": "data", "size": "900TiB"}]}, "capacity: needs 900TiB disk"),
        ({"network": {"mode": "bridge", "bridge": "wan"}}, "vm: has no bridge wan"),
    ],
)
def test_what_no_node_has_is_named(product: Product, vm: dict[str, Any], says: str) -> None:
    submit(product, "lacks", **vm)
    try:
        assert says in product.client.workloads.why("default", "lacks").message
    finally:
        product.client.workloads.cancel("default", "lacks")
        product.wait_until(is_state(product, "lacks", "cancelled"))


def test_files_that_no_machine_can_be_made_of_have_a_reason(product: Product) -> None:
    def failed(name: str, **vm: Any) -> str:
        submit(product, name, **vm)
        product.client.workloads.wait([("default", name)], timeout_s=BOOT_S)
        assert instance(product, name).state == "failed"
        return instance(product, name).message

    assert "image arm: it is for other processors than the node has (arm64, not amd64)" in failed("arm", kernel="arm")
    message = failed("disk", image="linux", kernel="", initrd="", cmdline="")
    assert "it is a kernel, not a disk; give it as `kernel`" in message
    offered = product.client.nodes.get("node-1").vm
    assert "image/gone" in offered and "accel/tcg" in offered
    GONE[0].unlink()
    assert "image gone: the node no longer has it" in failed("late", kernel="gone")


def test_a_machine_has_its_disks_after_a_restart_of_its_node(product: Product) -> None:
    """Its keeper dies, and QEMU with it; the server orders the machine again, for the same node."""
    script = "echo data $(head -c 7 /dev/vda); echo written | dd of=/dev/vda conv=notrunc,fsync; echo ready; sleep 1000"
    submit(product, "home", script, disks=[{"name": "data", "size": "1MiB"}])
    says(product, "home", b"ready")
    (before,) = machines(product)
    node = product._processes.pop()
    node.kill()
    node.wait()
    product.wait_until(lambda: before not in machines(product))
    start_again(product, node)
    product.wait_until(
        lambda: instance(product, "home").attempt == 2 and b"ready" in log(product, "home"), within_s=BOOT_S
    )
    assert b"data written" in log(product, "home")
    product.client.workloads.cancel("default", "home")
    product.wait_until(is_state(product, "home", "cancelled"), within_s=BOOT_S)


def start_again(product: Product, node: "subprocess.Popen[bytes]") -> None:
    again: Any = node.args
    product._processes.append(product._start(again, product.data / "node-1" / "again.log", dict(os.environ)))


def test_a_stop_of_the_node_ends_its_machines(product: Product) -> None:
    submit(product, "last")
    says(product, "last", b"begun")
    assert len(machines(product)) == 1
    node = product._processes.pop()
    node.terminate()
    node.wait()
    product.wait_until(lambda: machines(product) == [])
    start_again(product, node)
    product.client.workloads.cancel("default", "last")
    product.wait_until(is_state(product, "last", "cancelled"), within_s=BOOT_S)


def test_a_client_types_at_the_console(product: Product) -> None:
    submit(product, "typed", "echo ready; while read line; do echo got $line; done")
    says(product, "typed", b"ready")
    with pytest.raises(ApiError) as refused:
        product.client.tunnels.exec("default", "typed", ["true"])
    assert refused.value.code == "no_such_way"
    tunnel = product.client.tunnels.console("default", "typed")
    tunnel.write(b"from the client\n")
    with tunnel:
        found = b""
        while b"got from the client" not in found:
            piece = tunnel.read()
            assert piece is not None, (found, tunnel.end)
            found += piece[1]
    says(product, "typed", b"got from the client")
    assert is_state(product, "typed", "running")(), "it goes on"
    product.client.workloads.cancel("default", "typed")
    product.wait_until(is_state(product, "typed", "cancelled"), within_s=BOOT_S)
