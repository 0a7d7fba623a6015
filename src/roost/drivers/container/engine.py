"""The container engine of a node: which one answers, what it can do, and which of its containers are ours."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast
from urllib.parse import quote

import msgspec

from roost.keeper.containers.engine import EngineAway, EngineClient, EngineRefused

PROBE_S_MAX = 5.0
REMOVE_S_MAX = 60.0  # a busy engine takes seconds to remove a container
CDI_KIND = "nvidia.com/gpu"
CDI_BYTES_MAX = 1 << 20  # of one file; the kind is in its first lines
NODE_LABEL = "roost.node"
RUN_LABEL = "roost.run"
IDENTITY_LENGTH = 12  # of a node, in names and labels of its containers
#: Where Docker and Podman listen; of a user as well.
DEFAULT_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock")
USER_SOCKETS = ("docker.sock", "podman/podman.sock")
#: The first process that Podman puts before others, where its package has put it.
PODMAN_INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit")


class ContainerEngine(msgspec.Struct, frozen=True):
    socket: str
    kind: str  # docker | podman
    version: str
    has_init: bool = False  # it can put a first process before a program, which passes signals on
    root: str = ""  # the directory of its images
    has_cdi: bool = False  # it gives GPUs by the files that describe them (CDI), not by a runtime of their maker

    def labels(self) -> dict[str, str]:
        return {"engine": self.kind, "engine_version": self.version}


def default_sockets() -> tuple[str, ...]:
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return (*DEFAULT_SOCKETS, *(f"{folder}/{name}" for name in USER_SOCKETS if folder))


def find_engine(sockets: Iterable[str]) -> ContainerEngine | None:
    """The first that answers."""
    for path in sockets:
        with suppress(EngineAway, EngineRefused):
            return _probe(path)
    return None


def _probe(path: str) -> ContainerEngine:
    client = EngineClient(path, PROBE_S_MAX)
    version = _mapping(client.call("GET", "/version"))
    parts = [str(part.get("Name", "")) for part in version.get("Components") or ()]
    kind = "podman" if any(name.startswith("Podman") for name in parts) else "docker"
    info = _mapping(client.call("GET", "/info"))
    inits = PODMAN_INITS if kind == "podman" else (str(info.get("InitBinary") or "docker-init"),)
    has_init = any(shutil.which(program) for program in inits)
    root = str(info.get("DockerRootDir") or "")
    has_cdi = "nvidia" not in (info.get("Runtimes") or {}) and describes_gpus(info.get("CDISpecDirs") or ())
    return ContainerEngine(path, kind, str(version.get("Version", "")), has_init, root, has_cdi)


def describes_gpus(folders: Iterable[str]) -> bool:
    """Whether a file in these folders describes GPUs as CDI has them."""
    for folder in folders:
        with suppress(OSError):
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), "rb") as file:
                    if CDI_KIND.encode() in file.read(CDI_BYTES_MAX):
                        return True
    return False


def remove_orphans(engine: ContainerEngine, node: str, is_live: Callable[[str], bool]) -> int:
    """Remove the containers of a node that no live run has, and no others.

    `is_live` is asked after they were listed: a run is known before its container exists. Raises EngineAway and
    EngineRefused.
    """
    client = EngineClient(engine.socket, REMOVE_S_MAX)
    filters = quote(json.dumps({"label": [f"{NODE_LABEL}={node}"]}))
    found = cast(list[dict[str, Any]], client.call("GET", f"/containers/json?all=true&filters={filters}") or [])
    removed = 0
    for id in orphans(found, node, is_live):
        with suppress(EngineRefused):  # it is being removed already
            client.call("DELETE", f"/containers/{id}?force=true&v=true")
            removed += 1
    return removed


def orphans(containers: Iterable[dict[str, Any]], node: str, is_live: Callable[[str], bool]) -> list[str]:
    """The ids of those of a node that no live run has; an engine is not trusted to list only what was asked for."""
    found = []
    for container in containers:
        labels = container.get("Labels") or {}
        if labels.get(NODE_LABEL) == node and not is_live(str(labels.get(RUN_LABEL, ""))):
            found.append(str(container["Id"]))
    return found


def _mapping(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}
