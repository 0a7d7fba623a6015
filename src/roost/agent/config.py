"""The options of an agent: flags, with the environment as a second choice, checked before anything begins."""

import argparse
import os
import secrets
import socket
from pathlib import Path
from typing import NamedTuple

from roost.drivers.container.engine import default_sockets
from roost.drivers.container.request import HostVolume, check_volume
from roost.drivers.qemu.host import MachineHost
from roost.drivers.qemu.images import read_head
from roost.drivers.qemu.probe import is_bridge, joins_bridges
from roost.model.errors import Invalid
from roost.model.limits import DEFAULT_POOL, GPUS_MAX, VM_OFFERS_MAX, VOLUMES_MAX
from roost.model.records.node import Facts
from roost.model.spec.document import check_labels
from roost.model.spec.names import check_name, check_node_name, check_text
from roost.model.spec.placement import taints_of
from roost.model.spec.resources import read_resource
from roost.model.spec.runs.container import check_place

AUTO = "auto"  # the usual sockets of Docker and Podman
NO_ENGINE = "none"
IDENTITY_BYTES = 16  # two machines never get the same one
SLICES_MAX = 1_000
INPUT_CACHE = "10GiB"  # a few large inputs; a node with less room sets less
IMAGE_DISK = "85"  # percent: room for one more large image on most disks
UID_RANGE = "1900000000-1900009999"  # below: users, and containers of systemd
UID_MIN, UID_MAX = 1_000, (1 << 31) - 2
# ROOST_AGENT_...
FROM_ENVIRONMENT = (
    "SERVER",
    "NAME",
    "DIR",
    "TAINTS",
    "GPU",
    "GPU_MODEL",
    "ADDRESS",
    "INPUT_CACHE",
    "IMAGE_DISK",
    "DOCKER",
    "VOLUMES",
    "ISOLATION",
    "QEMU",
    "VM_IMAGES",
    "VM_BRIDGES",
)  # ROOST_AGENT_...


class AgentOptions(NamedTuple):
    server: str  # empty: as the certificate's file says
    name: str
    directory: str
    wishes: Facts  # what the node offers, where that is not as found
    number: int = 1  # of the agents that share the machine
    share: int = 1  # how many they are
    input_cache_bytes: int = 0
    engine_sockets: tuple[str, ...] = ()  # of a container engine: the first that answers
    volumes: dict[str, HostVolume] = {}
    isolation: str = ""  # of runs; empty: the best that there is
    uids: range = range(0)
    qemu: str = AUTO  # the program; `auto`: as it is found, `none`: no virtual machines
    machines: MachineHost = MachineHost()  # what they are made with, beside the program
    image_disk_percent: int = 100  # of the disk of the engine; above it, images that Roost fetched are removed


def read_options(arguments: list[str], environment: dict[str, str]) -> AgentOptions:
    """Flags and environment as settings. Raises Invalid, with the flag and a sentence."""
    given = _parser(environment).parse_args(arguments)
    check_node_name(given.name, "--name")
    server = _address(given.server) if given.server else ""
    number, share = _slice(given.slice)
    cache_bytes = read_resource("disk", given.input_cache, "--input-cache")
    return AgentOptions(
        server, given.name, os.path.abspath(given.dir), _wishes(given), number, share, cache_bytes,
        _sockets(given.docker), _volumes(given.volume),
        given.isolation, _uids(given.uid_range), _program(given.qemu), _machines(given), _percent(given.image_disk),
    )  # fmt: skip


def read_identity(directory: str) -> str:
    """Which machine this is: drawn once, and kept beside its work."""
    path = Path(directory, "identity")
    identity = path.read_text("ascii").strip() if path.exists() else ""
    if not identity:
        identity = secrets.token_hex(IDENTITY_BYTES)
        replace_file(str(path), f"{identity}\n")
    return identity


def read_life(directory: str, keeper: int) -> int:
    """Which life of this machine, counted: a keeper, and with it all that ran, is a new one. Kept in DIR/life."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")[:8]
    began = Path(f"/proc/{keeper}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    path, now = Path(directory, "life"), f"{boot}-{began}"
    try:
        number, existing = path.read_text("ascii").split()
        life = int(number)
    except (FileNotFoundError, ValueError):
        life, existing = 0, ""
    if existing != now:
        life += 1
        replace_file(str(path), f"{life} {now}\n")
    return life


def replace_file(path: str, text: str) -> None:
    """Write a private file, whole or not at all."""
    draft = f"{path}.new"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def _parser(environment: dict[str, str]) -> argparse.ArgumentParser:
    given = {name: environment.get(f"ROOST_AGENT_{name}", "") for name in FROM_ENVIRONMENT}
    parser = argparse.ArgumentParser(prog="roost.agent", description="An agent, started by its keeper.")
    parser.add_argument("--server", default=given["SERVER"], help="instead of those it received when it joined")
    parser.add_argument("--name", default=given["NAME"] or socket.gethostname())
    parser.add_argument("--dir", default=given["DIR"] or ".", help="for work, logs and identity")
    parser.add_argument("--label", action="append", default=[], metavar="K=V")
    parser.add_argument("--resource", action="append", default=[], metavar="K=N")
    parser.add_argument("--taint", action="append", default=_listed(given["TAINTS"]), metavar="KEY[=VALUE][:soft]")
    parser.add_argument("--gpu", default=given["GPU"])
    parser.add_argument("--gpu-model", default=given["GPU_MODEL"])
    parser.add_argument("--address", default=given["ADDRESS"], metavar="HOST")
    parser.add_argument("--input-cache", default=given["INPUT_CACHE"] or INPUT_CACHE, metavar="SIZE")
    parser.add_argument("--image-disk", default=given["IMAGE_DISK"] or IMAGE_DISK, metavar="PERCENT")
    parser.add_argument("--docker", default=given["DOCKER"] or AUTO, metavar="unix://PATH")
    parser.add_argument("--volume", action="append", default=_listed(given["VOLUMES"]), metavar="NAME=PATH[:ro]")
    parser.add_argument("--isolation", default=given["ISOLATION"], choices=("", "none", "user", "sandbox"))
    parser.add_argument("--qemu", default=given["QEMU"] or AUTO, metavar="PATH")
    for option, name, what in (("--vm-image", "VM_IMAGES", "PATH"), ("--vm-bridge", "VM_BRIDGES", "INTERFACE")):
        parser.add_argument(option, action="append", default=_listed(given[name]), metavar=f"NAME={what}")
    parser.add_argument("--uid-range", default=UID_RANGE, metavar="FROM-TO")
    for option in ("--zone", "--rack", "--region", "--cpu", "--memory", "--disk"):
        parser.add_argument(option, default="")
    parser.add_argument("--pool", default=DEFAULT_POOL)
    parser.add_argument("--slice", default="1/1", metavar="I/N", help="this is one of N agents that share the machine")
    return parser


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _wishes(given: argparse.Namespace) -> Facts:
    labels = dict(_pair(label, "--label") for label in given.label)
    check_labels(labels, "--label")
    for option in ("zone", "rack", "region", "gpu_model", "address"):
        check_text(getattr(given, option), f"--{option.replace('_', '-')}")
    if any(address.isspace() or address in "/@" for address in given.address):
        raise Invalid("--address", f"this is a host name or an IP address, not {given.address!r:.80}")
    check_name(given.pool, "--pool")
    measured = {name: getattr(given, name) for name in ("cpu", "memory", "disk")}
    resources = {name: read_resource(name, text, f"--{name}") for name, text in measured.items() if text}
    counted = dict(_pair(resource, "--resource") for resource in given.resource)
    resources |= {name: read_resource(name, amount, f"--resource {name}") for name, amount in counted.items()}
    if given.gpu:
        resources["gpu"] = _devices(given.gpu)
    return Facts(
        resources, labels, given.zone, given.rack, given.region, given.pool, gpu_model=given.gpu_model,
        taints=taints_of(given.taint, "--taint"), address=given.address,
        volumes=tuple(sorted(f"{name}{':rw' * item.is_writable}" for name, item in _volumes(given.volume).items())),
    )  # fmt: skip


def _sockets(text: str) -> tuple[str, ...]:
    if text == AUTO:
        return default_sockets()
    if text == NO_ENGINE:
        return ()
    path = text.removeprefix("unix://")
    if path == text or not path.startswith("/"):
        raise Invalid("--docker", f"this is unix:///PATH, {AUTO} or {NO_ENGINE}, not {text!r:.80}")
    return (path,)


def _volumes(given: list[str]) -> dict[str, HostVolume]:
    if len(given) > VOLUMES_MAX:
        raise Invalid("--volume", f"a node has at most {VOLUMES_MAX} volumes")
    found: dict[str, HostVolume] = {}
    for text in given:
        name, path = _pair(text, "--volume")
        check_name(name, "--volume")
        if name in found:
            raise Invalid("--volume", f"two volumes are called {name}")
        is_writable = not path.endswith(":ro")
        path = path.removesuffix(":ro").removesuffix(":rw")
        check_place(path, "--volume")
        check_volume(path, "--volume")
        found[name] = HostVolume(path, is_writable)
    return found


def _program(text: str) -> str:
    if text not in (AUTO, NO_ENGINE) and not os.access(text, os.X_OK):
        raise Invalid("--qemu", f"this is a program, {AUTO} or {NO_ENGINE}, not {text!r:.80}")
    return text if text in (AUTO, NO_ENGINE) else os.path.abspath(text)


def _machines(given: argparse.Namespace) -> MachineHost:
    """What virtual machines are made with. That one is not there is no reason to have no node: see `not_offered`."""
    images, bridges = _named(given.vm_image, "--vm-image"), _named(given.vm_bridge, "--vm-bridge")
    if bridges and not joins_bridges():
        raise Invalid("--vm-bridge", "only an agent that is root, or has CAP_NET_ADMIN, joins machines to a bridge")
    images = {name: os.path.abspath(path) for name, path in images.items()}
    return MachineHost(os.path.join(os.path.abspath(given.dir), "machines"), images, bridges)


def not_offered(machines: MachineHost) -> list[str]:
    """What was named and cannot be used now, each with why. The node offers it when it is there."""
    found = []
    for name, path in machines.images.items():
        try:
            read_head(path)
        except (OSError, ValueError) as error:
            found.append(f"image {name}: {path}: {getattr(error, 'strerror', None) or error}")
    bridges = [(name, interface) for name, interface in machines.bridges.items() if not is_bridge(interface)]
    return found + [f"bridge {name}: this machine has no bridge {interface}" for name, interface in bridges]


def _named(given: list[str], option: str) -> dict[str, str]:
    if len(given) > VM_OFFERS_MAX:
        raise Invalid(option, f"a node has at most {VM_OFFERS_MAX} of them")
    found: dict[str, str] = {}
    for name, value in (_pair(text, option) for text in given):
        check_name(name, option)
        if name in found:
            raise Invalid(option, f"two are called {name}")
        found[name] = value
    return found


def _devices(text: str) -> int:
    milli = read_resource("gpu", text, "--gpu")
    if milli % 1_000 or milli > GPUS_MAX * 1_000:
        raise Invalid("--gpu", f"a machine has 0 to {GPUS_MAX} whole devices, not {text!r:.40}")
    return milli


def _pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise Invalid(option, f"this is like NAME=VALUE, not {text!r:.80}")
    return name, value


def _uids(text: str) -> range:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not last.isdecimal() or not UID_MIN <= int(first) <= int(last) <= UID_MAX:
        raise Invalid("--uid-range", f"a range is like {UID_RANGE}, from {UID_MIN} to {UID_MAX}, not {text!r:.60}")
    return range(int(first), int(last) + 1)


def _percent(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise Invalid("--image-disk", f"this is a percentage from 1 to 100, not {text!r:.40}")
    return int(text)


def _slice(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not number.isdecimal() or not count.isdecimal() or not 1 <= int(number) <= int(count) <= SLICES_MAX:
        raise Invalid("--slice", f"a slice is like 2/3, the second of three, not {text!r:.40}")
    return int(number), int(count)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise Invalid("--server", f"a server is HOST:PORT, not {text!r:.200}")
    return text
