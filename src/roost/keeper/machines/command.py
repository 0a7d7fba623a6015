"""The command line of QEMU for one virtual machine. Pure: the same machine leads to the same arguments."""

from roost.keeper.machines.order import MachineOrder

CODE_CACHE_MIB = 64  # of translated code (tcg); QEMU's own choice is up to 1 GiB, past what the run asked for
MIB = 1 << 20

#: Nothing of a machine is here that was not asked for: no devices, no files of the user, no window.
BASE = ("-nodefaults", "-no-user-config", "-display", "none", "-no-hpet", "-msg", "timestamp=off")


#: No new programs, no other user, no old system calls.
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


class MachineFiles:
    """What QEMU reads and writes."""

    def __init__(self, boot: list[str], disks: list[dict[str, str]], disk_fds: list[int], state_fd: int) -> None:
        self.kernel, self.initrd, self.firmware = boot
        self.disks = disks  # block devices as QEMU takes them; the first is booted
        self.disk_fds = disk_fds  # `/dev/fdset/N` is the one at N
        self.state_fd = state_fd  # of the state that it goes on from; -1: it boots


def command(
    order: MachineOrder, files: MachineFiles, *, qmp_fd: int, console_fd: int, tap_fd: int = -1,
    has_sandbox: bool = True,
) -> list[str]:  # fmt: skip
    """With a saved state, QEMU waits for the call that names it."""
    argv = [order.program, *BASE, *_board(order, files)]
    if files.state_fd >= 0:
        argv += ["-incoming", "defer"]
    if has_sandbox:
        argv += ["-sandbox", SANDBOX]
    for number, fd in enumerate(files.disk_fds):
        argv += ["-add-fd", f"set={number},fd={fd}"]
    argv += ["-chardev", f"socket,id=qmp,fd={qmp_fd}", "-mon", "chardev=qmp,mode=control"]
    if console_fd >= 0:
        argv += ["-chardev", f"socket,id=console,fd={console_fd}", "-serial", "chardev:console"]
    for index, disk in enumerate(files.disks):
        argv += ["-blockdev", options(disk)]
        argv += ["-device", f"virtio-blk-pci,drive={disk['node-name']},bootindex={index + 1}"]
    argv += ["-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"]
    return [*argv, "-device", "pvpanic", *_network(order, tap_fd)]


def _board(order: MachineOrder, files: MachineFiles) -> list[str]:
    accel = "kvm" if order.accel == "kvm" else f"tcg,tb-size={CODE_CACHE_MIB}"
    processor = "host" if order.accel == "kvm" else "max"
    argv = ["-machine", "q35", "-accel", accel, "-cpu", processor]
    argv += ["-m", f"{-(-order.memory // MIB)}M", "-smp", str(order.processors)]
    if order.firmware:
        code = {"driver": "file", "filename": files.firmware, "node-name": "firmware", "read-only": "on"}
        argv += ["-blockdev", options(code), "-machine", "pflash0=firmware"]
    for flag, value in (("-kernel", files.kernel), ("-initrd", files.initrd), ("-append", order.cmdline)):
        if value:
            argv += [flag, value]
    return argv


def options(given: dict[str, str]) -> str:
    """In one word of the command line, where a comma is written twice."""
    return ",".join(f"{name}={value.replace(',', ',,')}" for name, value in given.items())


def _network(order: MachineOrder, tap_fd: int) -> list[str]:
    network = order.network
    mode = network.get("mode", "none")
    if mode == "none":
        return []
    if mode == "bridge":
        netdev = f"tap,id=net,fd={tap_fd}"
    else:
        forward = [f",hostfwd=tcp::{ours}-:{theirs}" for ours, theirs in order.forward]
        netdev = f"user,id=net,restrict={'on' if network.get('restrict') else 'off'}{''.join(forward)}"
    mac = f",mac={network['mac']}" if network.get("mac") else ""
    return ["-netdev", netdev, "-device", f"virtio-net-pci,netdev=net,romfile={mac}"]
