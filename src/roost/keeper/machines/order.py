"""What an order says about the virtual machine of a run, checked by hand. Keeper and supervisor read it alike."""

import marshal
import os

LINK = 3  # the descriptor on which a supervisor talks to its keeper
MESSAGE_BYTES_MAX = 1 << 16  # there
POWER_STATES = ("running", "paused", "stopped")
SEED_FILES = ("user-data", "meta-data", "network-config")  # secrets of the run
SEED_BYTES_MAX = 1 << 20  # of all of them; documents have 64 KiB, and secrets replace parts of them
OVERHEAD = 256 << 20  # bytes of QEMU beside its guest: itself, translated code (tcg), its supervisor
OVERHEAD_SHARE = 32  # one part of so many of the guest's memory: page tables, bitmaps
MEMORY_MAX = 1 << 46  # bytes: 64 TiB, more than a machine has
PROCESSORS_MAX = 255  # of the machine type `q35`
DISKS_MAX = 9  # one of an image, and 8 more
DISK_BYTES_MAX = 1 << 56  # what QEMU takes for a disk in its own format
FORWARDS_MAX = 100  # ports: each is a socket of QEMU
LINE_MAX = 2_048  # characters of a kernel's command line

_SMALL = "abcdefghijklmnopqrstuvwxyz0123456789"
_HEX = "0123456789abcdef"


class MachineOrder:
    """Its fields are those of ports/driver.Machine. `user` and `group` are those of QEMU, if it is not to have ours."""

    def __init__(self, given: object) -> None:
        """Raises ValueError."""
        if not isinstance(given, dict):
            raise ValueError("machine has to be an object with dir, program and memory, or null")
        self.body = given
        self.dir = path(given, "dir")
        self.program = path(given, "program")
        self.firmware, self.kernel, self.initrd = (path(given, name, "") for name in ("firmware", "kernel", "initrd"))
        self.state = path(given, "state", "")
        self.cmdline = given.get("cmdline", "")
        if not isinstance(self.cmdline, str) or len(self.cmdline) > LINE_MAX or "\0" in self.cmdline:
            raise ValueError(f"machine.cmdline has to be a line of at most {LINE_MAX} characters")
        self.memory = whole(given, "memory", 0, 1, MEMORY_MAX)
        self.processors = whole(given, "processors", 1, 1, PROCESSORS_MAX)
        self.power_serial = whole(given, "power_serial", 0, 0, 1 << 53)
        self.power = word(given, "power", "running", POWER_STATES)
        self.accel = word(given, "accel", "tcg", ("tcg", "kvm"))
        self.has_console = given.get("has_console", True) is True
        self.has_seed = given.get("has_seed", False) is True
        self.disks = disks(given.get("disks", []))
        self.network = network(given.get("network") or {})
        self.forward: list[tuple[int, int]] = [(ours, theirs) for ours, theirs in self.network.get("forward") or []]  # type: ignore[attr-defined]
        self.fd = -1

    def share(self, env: dict[str, str], *, leased: bool, until: int, user: tuple[int, int] | None) -> int:
        """A file in memory with what the supervisor is to do. Raises OSError."""
        self.close()
        self.fd = os.memfd_create("machine", os.MFD_CLOEXEC)
        seed = {name: env[name] for name in SEED_FILES if self.has_seed and name in env}
        order = {"machine": self.body, "seed": seed, "leased": leased, "until": until, "user": user}
        data = memoryview(marshal.dumps(order))
        while data:
            data = data[os.write(self.fd, data) :]
        return self.fd

    def limits(self, asked: tuple[int, int] | None) -> tuple[int, int] | None:
        """Of the group of its processes: QEMU needs more memory than its guest has."""
        if asked is None or not asked[1]:
            return asked
        return asked[0], asked[1] + OVERHEAD + self.memory // OVERHEAD_SHARE

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def disks(given: object) -> list[dict[str, object]]:
    if not isinstance(given, list) or len(given) > DISKS_MAX:
        raise ValueError(f"machine.disks has to be a list of at most {DISKS_MAX}")
    names: set[object] = set()
    for index, disk in enumerate(given):
        here = f"machine.disks[{index}]"
        if not isinstance(disk, dict) or not is_name(disk.get("name"), _SMALL, 63) or disk["name"] in names:
            raise ValueError(f"{here} has to be an object with a name of its own")
        names.add(disk["name"])
        base = path(disk, "base", "", f"{here}.")
        whole(disk, "size", 0, 0 if base else 1, DISK_BYTES_MAX, f"{here}.")
        whole(disk, "retention_ms", 0, 0, 1 << 53, f"{here}.")
        if not isinstance(disk.get("content", ""), str):
            raise ValueError(f"{here}.content has to be a string")
    return given


def network(given: object) -> dict[str, object]:
    if not isinstance(given, dict):
        raise ValueError("machine.network has to be an object")
    mode = word(given, "mode", "none", ("none", "user", "bridge"), "machine.network.")
    if given.get("mac") and not is_mac(given["mac"]):
        raise ValueError("machine.network.mac has to be six bytes, like 52:54:00:12:34:56")
    if mode == "bridge" and not is_name(given.get("bridge"), _SMALL + _SMALL.upper() + "_", 15):
        raise ValueError("machine.network.bridge has to be the name of an interface")
    forward = given.get("forward") or []
    if not isinstance(forward, list) or len(forward) > FORWARDS_MAX:
        raise ValueError(f"machine.network.forward has to be a list of at most {FORWARDS_MAX}")
    for pair in forward:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(is_port(port) for port in pair):
            raise ValueError("machine.network.forward has to be pairs of ports")
    return given


def is_port(value: object) -> bool:
    return type(value) is int and 0 < value < 1 << 16


def is_name(value: object, allowed: str, length_max: int) -> bool:
    """By hand, as regular expressions would be a third of what a supervisor loads before it starts QEMU."""
    if not isinstance(value, str) or not 0 < len(value) <= length_max or value[0] not in allowed:
        return False
    return all(character in allowed or character in "._-" for character in value)


def is_mac(value: object) -> bool:
    parts = value.split(":") if isinstance(value, str) else []
    return len(parts) == 6 and all(len(part) == 2 and part[0] in _HEX and part[1] in _HEX for part in parts)


def path(given: dict[str, object], name: str, default: str | None = None, where: str = "machine.") -> str:
    found = given.get(name, default)
    if found == "" == default:
        return ""
    if not isinstance(found, str) or found[:1] != "/" or "\0" in found:
        raise ValueError(f"{where}{name} has to be an absolute path")
    return found


def whole(
    given: dict[str, object], name: str, default: int, least: int, most: int, where: str = "machine."
) -> int:  # fmt: skip
    found = given.get(name, default)
    if type(found) is not int or not least <= found <= most:
        raise ValueError(f"{where}{name} has to be a whole number from {least} to {most}")
    return found


def word(given: dict[str, object], name: str, default: str, allowed: tuple[str, ...], where: str = "machine.") -> str:
    found = given.get(name, default)
    if found not in allowed:
        raise ValueError(f"{where}{name} has to be one of {', '.join(allowed)}")
    return str(found)
