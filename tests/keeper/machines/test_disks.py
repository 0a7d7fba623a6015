"""Disks, seeds, networks and the user of virtual machines, with real QEMU; how long disks are kept, without it."""

import base64
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from roost.keeper.machines.disks import DisksRefused, lock, read_list
from roost.keeper.machines.retention import KEEP_MS_MIN, sweep, used
from tests.keeper.keeper_harness import Event, until
from tests.keeper.machines.machine_bench import BOOT_S, MachineBench

MIB = 1 << 20
READ = "echo root $(head -c 5 /dev/vda) $(blockdev --getsize64 /dev/vda); echo data $(head -c 5 /dev/vdb)"
WRITE = "printf later | dd of=/dev/vda conv=notrunc 2>/dev/null; printf other > /dev/vdb; sync"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.raw"
    path.write_bytes(b"first".ljust(MIB, b"\0"))
    return path


def root(image: Path, **more: object) -> Event:
    return {"name": "root", "base": str(image)} | more


def data(**more: object) -> Event:
    return {"name": "data", "size": 2 * MIB} | more


def log_of(bench: MachineBench, id: str, script: str, *disks: Event) -> str:
    bench.start(id, script, {"disks": list(disks)})
    ended = bench.client.ended(id)
    assert ended["cause"] == "exited", ended
    return bench.harness.log(id).decode(errors="replace")


def test_disks_stay_for_the_next_attempt_and_their_image_is_not_changed(bench: MachineBench, image: Path) -> None:
    assert f"root first {MIB}\ndata\n" in log_of(bench, "1", f"{READ}; {WRITE}", root(image), data())
    assert image.read_bytes().rstrip(b"\0") == b"first"
    grown = root(image, size=3 * MIB)
    assert f"root later {3 * MIB}\ndata other\n" in log_of(bench, "2", READ, grown, data()), "a disk may grow"


def test_a_disk_may_grow_when_its_image_lies_elsewhere(bench: MachineBench, image: Path) -> None:
    """Images that are inputs lie in the work directory of each attempt."""
    log_of(bench, "1", WRITE, root(image, content="one"))
    moved = image.rename(image.with_name("moved.raw"))
    grown = root(moved, content="one", size=3 * MIB)
    assert f"root later {3 * MIB}\n" in log_of(bench, "2", READ, grown)


def test_another_image_is_another_disk(bench: MachineBench, image: Path) -> None:
    log_of(bench, "1", WRITE, root(image), data())
    other = image.with_name("other.qcow2")
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", image, other], check=True)
    assert f"root first {MIB}\ndata other\n" in log_of(bench, "2", READ, root(other), data())


@pytest.mark.parametrize(
    "disk, message",
    [
        ({"size": MIB // 2}, "its image needs 1048576 bytes, not 524288"),
        ({"base": "/no/image"}, "disk root: /no/image: No such file or directory"),
    ],
)
def test_disks_that_cannot_be_made_say_why(bench: MachineBench, image: Path, disk: Event, message: str) -> None:
    bench.start("1", READ, {"disks": [root(image) | disk]})
    ended = bench.client.ended("1")
    assert (ended["cause"], message in ended["error"]) == ("error", True), ended
    assert not list((bench.disks / "m").glob("*.qcow2*"))


def test_an_image_that_was_replaced_is_not_put_under_a_disk(bench: MachineBench, image: Path) -> None:
    bench.start("1", "", {"disks": [root(image)], "power": "stopped"})
    assert bench.powered("1")[0] == "stopped"
    bench.client.send({"do": "stop", "id": "1"})
    bench.client.ended("1")
    image.write_bytes(b"second".ljust(2 * MIB, b"\0"))
    bench.start("2", "", {"disks": [root(image)], "power": "stopped"})
    assert bench.client.ended("2")["error"].endswith("has changed since the disk was made of it")


@pytest.mark.parametrize(
    "machine, field",
    [
        ({"memory": 0}, "machine.memory"),
        ({"disks": [{"name": "../x", "size": 1}]}, "machine.disks[0]"),
        ({"disks": [{"name": "a"}]}, "machine.disks[0].size"),
        ({"disks": [{"name": "a", "size": 1}, {"name": "a", "size": 1}]}, "machine.disks[1]"),
        ({"network": {"mode": "user", "mac": "52:54:00:12:34:56,x=y"}}, "machine.network.mac"),
        ({"network": {"mode": "user", "forward": [[80, 70_000]]}}, "machine.network.forward"),
        ({"network": {"mode": "bridge", "bridge": "a b"}}, "machine.network.bridge"),
        ({"processors": 256}, "machine.processors"),
        ({"accel": "hax"}, "machine.accel"),
    ],
)
def test_an_order_that_is_wrong_is_refused_with_its_field(bench: MachineBench, machine: Event, field: str) -> None:
    bench.start("1", "", machine)
    assert bench.client.next("refused", "1")["error"].startswith(f"{field} has to be")
    assert not bench.disks.exists()


def test_a_seed_has_the_secrets_and_leaves_no_file(bench: MachineBench) -> None:
    files = {"user-data": b"#cloud-config\n" + b"x" * 5_000, "meta-data": b"instance-id: one\n", "network-config": b""}
    secrets = {name: base64.b64encode(content).decode() for name, content in files.items()}
    script = "mount -o ro /dev/vda /mnt; dd if=/dev/vda bs=1 skip=32808 count=6; cd /mnt; wc -c *; cat meta-data; "
    plain = "cd /; umount /mnt; mount -o ro,nojoliet /dev/vda /mnt; cd /mnt; wc -c *; echo done; sleep 1000"
    bench.start("1", script + plain, {"has_seed": True}, secrets=secrets)
    bench.writes("1", b"done")
    log = bench.harness.log("1").decode()
    sizes = "17 meta-data\n        0 network-config\n     5014 user-data\n"
    assert log.count(sizes) == 2, log
    assert "cidata" in log and "instance-id: one" in log
    found = [
        path for path in bench.harness.work.parent.rglob("*") if path.is_file() and b"x" * 5_000 in path.read_bytes()
    ]
    assert found == [], "secrets are in memory only"
    assert "user-data" not in Path(f"/proc/{bench.supervisor('1')}/environ").read_text()


def test_ports_of_the_node_lead_into_the_machine(bench: MachineBench) -> None:
    port = free_port()
    script = (
        "ip link set lo up; ip link set eth0 up; "
        "ip addr add 10.0.2.15/24 dev eth0; echo hello > /tmp/index.html; echo $(cat /sys/class/net/eth0/address); "
        "httpd -f -p 8080 -h /tmp"
    )
    network = {"mode": "user", "mac": "52:54:00:aa:bb:cc", "restrict": True, "forward": [[port, 8080]]}
    bench.start("1", script, {"network": network})
    until(lambda: answer(port).endswith(b"hello\n"), "the guest to answer", BOOT_S)
    assert b"52:54:00:aa:bb:cc" in bench.harness.log("1")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def answer(port: int) -> bytes:
    found = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while data := sock.recv(4096):
                found += data
    except OSError:
        pass
    return found


def test_qemu_is_not_root_and_can_start_no_program(bench: MachineBench) -> None:
    bench.start("1", "sleep 1000")
    assert bench.powered("1")[0] == "running"
    status = Path(f"/proc/{bench.qemu('1')}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Seccomp"] == "2"
    if os.geteuid() == 0:
        assert fields["Uid"].split() == ["65534"] * 4
        assert (fields["NoNewPrivs"], int(fields["CapEff"], 16), fields["Groups"].strip()) == ("1", 0, "")


def test_a_machine_of_a_user_is_of_that_user(bench: MachineBench) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    bench.start("1", "sleep 1000", isolation={"level": "sandbox", "user": 700_001, "group": 700_002, "project": "web"})
    assert bench.powered("1")[0] == "running"
    assert os.stat(f"/proc/{bench.qemu('1')}").st_uid == 700_001


# --- how long disks stay


def stored(folder: Path, **retention_ms: int) -> Path:
    """A machine with these disks."""
    directory = folder / "m"
    os.close(lock(str(directory)))
    listed = {name: {"base": "", "identity": "", "retention_ms": kept} for name, kept in retention_ms.items()}
    (directory / "disks.json").write_text(json.dumps(listed))
    for name in retention_ms:
        (directory / f"{name}.qcow2").write_bytes(b"")
    used(str(directory))
    return directory


def test_disks_go_when_their_retention_is_over(tmp_path: Path) -> None:
    directory = stored(tmp_path, first=0, data=10 * KEEP_MS_MIN)
    now = time.time()
    assert sweep(str(tmp_path), now + KEEP_MS_MIN / 1_000 - 1) == []
    assert sweep(str(tmp_path), now + KEEP_MS_MIN / 1_000 + 1) == [f"{directory}/first.qcow2"]
    assert read_list(str(directory)).keys() == {"data"}
    assert sweep(str(tmp_path), now + 9 * KEEP_MS_MIN / 1_000) == []
    assert sweep(str(tmp_path), now + 10 * KEEP_MS_MIN / 1_000 + 1) == [f"{directory}/data.qcow2"]
    assert not directory.exists()
    assert sweep(str(tmp_path), now) == sweep("/no/such", now) == []


def test_a_machine_that_has_its_disks_keeps_them(tmp_path: Path) -> None:
    directory = stored(tmp_path, first=0)
    fd = lock(str(directory))
    used(str(directory))
    assert sweep(str(tmp_path), time.time() + 100 * KEEP_MS_MIN) == []
    with pytest.raises(DisksRefused, match=f"another machine has them .process {os.getpid()}."):
        lock(str(directory), 0)
    os.close(fd)
    assert sweep(str(tmp_path), time.time() + 100 * KEEP_MS_MIN) == [f"{directory}/first.qcow2"]
