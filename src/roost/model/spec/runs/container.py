"""What a document says about a container: `image`, `container` and `volumes`, checked."""

import hashlib
import re
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.secret import FromSecret
from roost.model.spec.commands import check_argument
from roost.model.spec.names import check_name, check_text
from roost.model.spec.placement import between
from roost.model.spec.problems import check_each, indexed
from roost.model.states import WorkloadKind

#: A reference as registries define it: the host of a registry, a path in lower case, a tag, a digest.
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?"
_REFERENCE = re.compile(
    rf"(?:(?P<host>{_HOST})/)?(?P<path>{_PART}(?:/{_PART})*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_USER = re.compile(r"[0-9]{1,10}(?::[0-9]{1,10})?")
USER_ID_MAX = (1 << 32) - 2
#: What the root of a container may do if its document says so; the engines give these to every container.
CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
ONLY_IMAGES = "only a workload with an `image` runs in a container"
WORK_PLACE = "/roost"  # the work directory of a run, as its container sees it
TAKEN_PLACES = ("/", "/proc", "/sys", "/dev", WORK_PLACE)  # where nothing may be mounted


class Pull(StrEnum):
    """When an image is fetched from its registry."""

    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


class Network(StrEnum):
    """What a container reaches: its own address behind the node, the node's own network, or nothing."""

    BRIDGE = "bridge"
    HOST = "host"
    NONE = "none"


class RegistryBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    user: str
    password: FromSecret


class VolumeBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    to: str
    read_only: bool = False


class ContainerBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    entrypoint: list[str] = []  # instead of the image's
    pull: Pull = Pull.MISSING
    user: str = ""  # UID or UID:GID; empty: the image's
    workdir: str = ""  # empty: the work directory of the run, or the image's own if it runs its own program
    read_only: bool = False  # its root file system
    network: Network = Network.BRIDGE
    capabilities: list[str] = []
    registry: RegistryBlock | None = None


class ImageWanted(msgspec.Struct, frozen=True):
    """What a node has to have before a run begins."""

    image: str
    pull: Pull = Pull.MISSING
    user: str = ""  # of its registry


def check_image(image: str, kind: WorkloadKind, path: str) -> None:
    if not image:
        return
    check_text(image, path)
    if kind == WorkloadKind.VM:
        raise Invalid(path, "a vm does not run the image of a container")
    if _REFERENCE.fullmatch(image) is None:
        example = "python:3.12 or registry.example:5000/team/app@sha256:..."
        raise Invalid(path, f"an image is like {example}, not {image!r:.80}")


def has_digest(image: str) -> bool:
    return "@" in image


def image_key(image: str) -> int:
    """The same for all references of one image of a registry: of `python` and of `docker.io/library/python:latest`."""
    name, _, digest = image.partition("@")
    name, colon, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    whole = f"{name}@{digest}" if digest else f"{name}:{tag}"
    return int.from_bytes(hashlib.blake2b(whole.encode(), digest_size=8).digest(), "big") >> 1  # fits signed integers


class Contained(Protocol):
    """The fields of a document that matter here."""

    image: str
    command: str | list[str]
    steps: list[Any] | None
    container: ContainerBlock | None


def check_container(document: Contained, path: str) -> None:
    block, command = document.container, document.command
    if block is None:
        return
    if not document.image:
        raise Invalid(path, ONLY_IMAGES)
    between(len(block.entrypoint), 0, limits.ARGUMENTS_MAX, f"{path}.entrypoint", "arguments")
    check_each(check_argument, indexed(block.entrypoint, f"{path}.entrypoint"))
    if block.entrypoint and (document.steps is not None or (isinstance(command, str) and command)):
        raise Invalid(f"{path}.entrypoint", "a line for the shell has no entrypoint; write `command` as a list")
    if block.entrypoint and not block.entrypoint[0]:
        raise Invalid(f"{path}.entrypoint[0]", "the program to run has no name")
    if block.user:
        _check_user(block.user, f"{path}.user")
    if block.workdir:
        check_place(block.workdir, f"{path}.workdir")
    between(len(block.capabilities), 0, len(CAPABILITIES), f"{path}.capabilities", "capabilities")
    for index, name in enumerate(block.capabilities):
        if name not in CAPABILITIES:
            raise Invalid(f"{path}.capabilities[{index}]", f"one of {', '.join(CAPABILITIES)}, not {name!r:.40}")
    if block.registry is not None:
        check_text(block.registry.user, f"{path}.registry.user")
        check_name(block.registry.password.secret, f"{path}.registry.password.secret")


def check_volumes(volumes: dict[str, str | VolumeBlock], image: str, path: str) -> tuple[str, ...]:
    """What a node has to offer: the names, with `:rw` behind those that are written to."""
    if volumes and not image:
        raise Invalid(path, ONLY_IMAGES)
    between(len(volumes), 0, limits.VOLUMES_MAX, path, "volumes")
    places: set[str] = set()
    found = []
    for name, value in sorted(volumes.items()):
        check_name(name, path)
        block = VolumeBlock(value) if isinstance(value, str) else value
        here = f"{path}.{name}" if isinstance(value, str) else f"{path}.{name}.to"
        check_place(block.to, here)
        if block.to in TAKEN_PLACES or block.to.startswith((f"{WORK_PLACE}/", "/proc/", "/sys/", "/dev/")):
            raise Invalid(here, f"nothing can be mounted at {block.to!r:.60}")
        if block.to in places:
            raise Invalid(here, "two volumes at one place")
        places.add(block.to)
        found.append(name if block.read_only else f"{name}:rw")
    return tuple(found)


def check_place(place: str, path: str) -> None:
    """A plain absolute path: no way back, nothing that an engine would read as options."""
    check_text(place, path)
    parts = place.split("/")
    is_plain = place == "/" or (parts[0] == "" and all(part not in ("", ".", "..") for part in parts[1:]))
    if not is_plain or ":" in place or "," in place:
        raise Invalid(path, f"this is an absolute path in the container without '..', ':' and ',', not {place!r:.80}")


def _check_user(user: str, path: str) -> None:
    if _USER.fullmatch(user) is None or any(int(part) > USER_ID_MAX for part in user.split(":")):
        raise Invalid(path, f"a user is a number or two, UID:GID, not {user!r:.40}")
