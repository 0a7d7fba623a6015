"""Virtual machines of an agent: what its node offers, and an order that becomes a run with files that were found."""

import json
import os
import time
from pathlib import Path
from typing import Any

from roost.agent.files.progress import FetchInputs
from roost.agent.machine import AgentMachine
from roost.agent.machines import MachineWatch
from roost.agent.offers import with_machines
from roost.agent.prepare import from_note
from roost.drivers.container.engine import ContainerEngine
from roost.drivers.qemu.host import MachineHost, MachineWanted, QemuProgram
from roost.model.protocol import Run
from roost.model.records.files import InputFailure, InputProblem
from roost.model.records.node import Facts
from roost.ports.driver import MachineDisk, RunRequest
from roost.wire import agent_pb2 as pb
from tests.agent.test_machine import answered, machine_with
from tests.core.scene import wanted

QEMU = QemuProgram("/usr/bin/qemu", "7.2", firmware="/uefi")
HOST = MachineHost("/agent/machines", {"debian": "/images/debian"}, {"lan": "br0"}, QEMU)
GONE = InputFailure(InputProblem.IMAGE_GONE, "debian")


async def unreachable(method: str, request: bytes) -> bytes:
    raise ConnectionError("there is no server yet")


def run(token: int, **fields: Any) -> Run:
    vm = {"image": "debian", "cloud_init": {"user_data": "#!x"}}
    document = wanted({"name": "db", "kind": "vm", "vm": vm, "resources": {"memory": "96MiB"}} | fields).document
    return Run(token, "default/db", 0, 1, document, grace_ms=700, serial=3)


def ordered(host: MachineHost = HOST) -> tuple[AgentMachine, list[Any]]:
    machine, _ = machine_with()
    machine.machines = host
    machine.actor.facts = Facts({}, arch="amd64")
    return machine, answered(machine, 1_020, base=1, generation=2, orders=(run(1),))


def test_what_a_node_offers_follows_its_qemu() -> None:
    facts = with_machines(Facts({}, labels={"os": "linux"}), HOST)
    assert facts.drivers == ("process", "qemu")
    assert facts.labels == {"os": "linux", "qemu": "7.2"}
    assert facts.vm == ("accel/tcg", "bridge/lan", "firmware/uefi", "image/debian")
    assert with_machines(facts, MachineHost("/agent/machines", HOST.images)) == Facts({}, labels={"os": "linux"})


def test_containers_and_machines_are_offered_beside_each_other() -> None:
    machine, _ = machine_with()
    machine.engine_changed(ContainerEngine("/s", "docker", "20"), 1_010)
    machine.machines_changed(HOST, 1_020)
    assert machine.actor.facts.drivers == ("process", "container", "qemu")
    machine.engine_changed(None, 1_030)
    assert (machine.actor.facts.drivers, machine.actor.facts.labels) == (("process", "qemu"), {"qemu": "7.2"})


def test_a_machine_begins_when_its_files_were_found() -> None:
    machine, effects = ordered()
    (fetch,) = [effect for effect in effects if isinstance(effect, FetchInputs)]
    assert isinstance(fetch.machine, MachineWanted)
    assert (fetch.machine.sources, fetch.machine.arch) == ({"image": "debian"}, "amd64")
    built = fetch.machine.machine
    assert built.disks == [MachineDisk("root", 0, "/images/debian")] and built.dir == "/agent/machines/default~db.3.0"
    (request,) = machine.fetched(1, None, 1_100, machine=built)
    assert isinstance(request, RunRequest) and request.machine == built
    assert [step.argv for step in request.steps] == [["db"]]
    assert sorted(request.secrets) == ["meta-data", "user-data"], "its seed reaches the keeper as secrets do"
    assert b"#!x" not in request.note.encode() and from_note(request.note) is not None


def test_an_image_that_is_gone_ends_the_attempt() -> None:
    machine, _ = ordered()
    machine.fetched(1, GONE, 1_100)
    assert (machine.actor.attempts[1].cause, machine.actor.attempts[1].inputs_failed) == ("error", GONE)


def test_a_node_whose_qemu_is_gone_says_so() -> None:
    machine, _ = ordered(MachineHost("/agent/machines"))
    attempt = machine.actor.attempts[1]
    assert (attempt.cause, attempt.inputs_failed) == ("error", InputFailure(InputProblem.NO_QEMU))


async def test_images_that_go_are_withdrawn(tmp_path: Path) -> None:
    program, image = tmp_path / "qemu", tmp_path / "image"
    program.write_text("#!/bin/sh\necho version 9.1\n")
    program.chmod(0o755)
    image.write_bytes(b"x")
    found: list[MachineHost] = []
    watch = MachineWatch(
        MachineHost(f"{tmp_path}/machines", {"one": str(image)}), str(program), "amd64", unreachable, found.append
    )
    await watch.probe()
    await watch.probe()
    assert [host.offers() for host in found] == [("accel/tcg", "image/one")]
    image.unlink()
    await watch.probe()
    assert found[-1].offers() == ("accel/tcg",)
    program.unlink()
    await watch.probe()
    assert (len(found), found[-1].offers(), found[-1].labels()) == (3, (), {})


async def test_a_node_for_which_none_is_wanted_offers_none() -> None:
    watch = MachineWatch(MachineHost(), "none", "amd64", unreachable, lambda host: 1 / 0)  # type: ignore[arg-type, return-value]
    await watch.begin()


def disks(root: Path, name: str, retention_ms: int = 0) -> Path:
    """Those of a machine that ran a day ago."""
    folder = root / name
    folder.mkdir(parents=True)
    for file in ("lock", "root.qcow2"):
        (folder / file).write_bytes(b"")
    (folder / "disks.json").write_text(json.dumps({"root": {"retention_ms": retention_ms}}))
    os.utime(folder / "lock", (time.time() - 86_400,) * 2)
    return folder


async def test_disks_go_only_when_a_server_says_that_their_machine_has_ended(tmp_path: Path) -> None:
    """A node that was off for a day: its machines start again with their disks."""
    live, ended, kept = (disks(tmp_path, f"default~{name}.3.0", ms) for name, ms in (("a", 0), ("b", 0), ("c", 10**9)))
    asked: list[str] = []

    async def call(method: str, request: bytes) -> bytes:
        machines = pb.LiveMachinesRequest.FromString(request).machines
        asked.extend(f"{method} {item.workload} {item.serial} {item.index}" for item in machines)
        return pb.LiveMachinesReply(machines=machines[:1]).SerializeToString()

    host = MachineHost(str(tmp_path))
    await MachineWatch(host, "none", "amd64", unreachable, lambda host: None).tidy()
    assert live.exists() and ended.exists(), "no server has answered"
    await MachineWatch(host, "none", "amd64", call, lambda host: None).tidy()
    assert asked == [f"LiveMachines default/{name} 3 0" for name in "abc"]
    assert (live.exists(), ended.exists(), kept.exists()) == (True, False, True)
    assert time.time() - (live / "lock").stat().st_mtime < 600, "its retention begins when it has ended"
