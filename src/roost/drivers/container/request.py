"""What an engine is to create for a run: the body of its call, from the document alone and the options of the node."""

import os
import resource
from typing import Any

import msgspec

from roost.drivers.container.engine import CDI_KIND, IDENTITY_LENGTH, NODE_LABEL, RUN_LABEL, ContainerEngine
from roost.keeper.cgroup import PIDS_MAX
from roost.model.errors import Invalid
from roost.model.protocol import Run
from roost.model.spec.document import Document
from roost.model.spec.runs.container import WORK_PLACE, ContainerBlock, VolumeBlock
from roost.ports.driver import Container, Limits

NANO_PER_MILLI = 1_000_000
RLIMITS = (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))


class NoEngine(Invalid):
    """None answers on this node, now."""


class HostVolume(msgspec.Struct, frozen=True):
    path: str
    is_writable: bool


class ContainerHost(msgspec.Struct, frozen=True):
    """What containers of a node are made with."""

    identity: str = ""  # of the node's machine: it marks its containers
    volumes: dict[str, HostVolume] = {}
    engine: ContainerEngine | None = None  # that answered last

    @property
    def node(self) -> str:
        return self.identity[:IDENTITY_LENGTH]

    @property
    def socket(self) -> str:
        return self.engine.socket if self.engine is not None else ""

    def name(self, token: int) -> str:
        """Of the container of an attempt."""
        return f"roost-{self.node}-{token}"


def container(host: ContainerHost, document: Document, run: Run, folder: str, limits: Limits | None) -> Container:
    """Raises Invalid when this node cannot do it."""
    engine = host.engine
    if engine is None:
        raise NoEngine("image", "no container engine answers on this node")
    block = document.container or ContainerBlock()
    is_own = not document.command and document.steps is None  # the image's own program
    body: dict[str, Any] = {
        "Image": document.image,
        **_program(document, block),
        "WorkingDir": block.workdir or ("" if is_own else WORK_PLACE),
        "User": block.user,
        "Labels": {NODE_LABEL: host.node, RUN_LABEL: str(run.token), "roost.instance": f"{run.workload}.{run.index}"},
        "HostConfig": _host_config(engine, host, document, block, run, folder, limits, has_init=not is_own),
    }
    if block.network == "bridge" and run.ports:
        body["ExposedPorts"] = {f"{port}/tcp": {} for port in run.ports}
    return Container(engine.socket, host.name(run.token), body)


def _program(document: Document, block: ContainerBlock) -> dict[str, Any]:
    """A line for the shell replaces the image's entrypoint; a list is given to it, as its arguments."""
    if document.steps is not None:
        return {}  # the shim holds the container, and runs one after the other in it
    if isinstance(document.command, str):
        line = document.command
        return {"Entrypoint": ["/bin/sh", "-c", line]} if line else _entrypoint(block)
    return {"Cmd": list(document.command), **_entrypoint(block)}


def _entrypoint(block: ContainerBlock) -> dict[str, Any]:
    return {"Entrypoint": list(block.entrypoint)} if block.entrypoint else {}


def _host_config(
    engine: ContainerEngine, host: ContainerHost, document: Document, block: ContainerBlock, run: Run, folder: str,
    limits: Limits | None, *, has_init: bool,
) -> dict[str, Any]:  # fmt: skip
    """Nothing of this is more than a process of this node may do: no privileges, no devices, no namespaces of the host
    but its network where that was asked for."""
    found: dict[str, Any] = {
        "NetworkMode": str(block.network),
        "CapDrop": ["ALL"],
        "CapAdd": list(block.capabilities),
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": block.read_only,
        "PidsLimit": PIDS_MAX,
        "LogConfig": {"Type": "none"},  # the shim writes the only log
        "Mounts": [_mount(folder, WORK_PLACE, read_only=False), *_volumes(host, document)],
        "Ulimits": [_rlimit(name, which) for name, which in RLIMITS],
        "Init": has_init and engine.has_init,
    }
    if limits is not None and limits.cpu_m:
        found["NanoCpus"] = limits.cpu_m * NANO_PER_MILLI
    if limits is not None and limits.memory:
        found["Memory"] = found["MemorySwap"] = limits.memory
    if run.devices:
        found["DeviceRequests"] = [_gpus(engine, run.devices)]
    if block.network == "bridge" and run.ports:
        found["PortBindings"] = {f"{port}/tcp": [{"HostPort": str(port)}] for port in run.ports}
    return found


def _gpus(engine: ContainerEngine, devices: tuple[int, ...]) -> dict[str, Any]:
    if engine.kind == "podman":  # it would start the container without them, and say nothing
        raise Invalid("resources.gpu", "Podman gives no GPUs to containers of its API; require labels.engine")
    if engine.has_cdi:
        return {"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}={device}" for device in devices]}
    return {"Driver": "nvidia", "DeviceIDs": [str(device) for device in devices], "Capabilities": [["gpu"]]}


def _volumes(host: ContainerHost, document: Document) -> list[dict[str, Any]]:
    found = []
    for name, value in document.volumes.items():
        wanted = VolumeBlock(value) if isinstance(value, str) else value
        offered = host.volumes.get(name)
        if offered is None or not (offered.is_writable or wanted.read_only):
            raise Invalid(f"volumes.{name}", "this node does not offer it")
        found.append(_mount(offered.path, wanted.to, read_only=wanted.read_only))
    return found


def _mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def _rlimit(name: str, which: int) -> dict[str, Any]:
    """As of a process here: an engine may have others, or none that this machine allows."""
    soft, hard = resource.getrlimit(which)
    return {"Name": name, "Soft": soft, "Hard": hard}


def check_volume(path: str, option: str) -> None:
    """Refuse to give an engine's socket, or all of the machine, to containers."""
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise Invalid(option, f"{path!r:.80} is not a directory")
    for forbidden in ("/run/docker.sock", "/run/podman/podman.sock", "/proc", "/sys", "/dev"):
        target = os.path.realpath(forbidden)
        if target == real or target.startswith(real.rstrip("/") + "/"):
            raise Invalid(option, f"{path!r:.80} holds {forbidden}, which no container gets")
