"""The command line of QEMU for one virtual machine. Pure: the same machine leads to the same arguments."""

import json

from roost.keeper.machines.order import MachineOrder

CODE_CACHE_MIB = 64  # of translated code (tcg); QEMU's own choice is up to 1 GiB, past what the run asked for
MIB = 1 << 20

#: Nothing of a machine is here that was not asked for: no devices, no files of the user, no window.
BASE = ("-nodefaults", "-no-user-config", "-display", "none", "-no-hpet", "-msg", "timestamp=off")


def command(
    order: MachineOrder, *, qmp_fd: int, console_fd: int, disks: list[dict[str, object]], tap_fd: int = -1,
    runas: str = "", has_sandbox: bool = True,
) -> list[str]:  # fmt: skip
    """`disks`: what QEMU calls block devices, the first is booted. `runas`: UID:GID, if it begins as root."""
    argv = [order.program, *BASE, *_board(order), *_sandbox(runas, has_sandbox=has_sandbox)]
    argv += ["-chardev", f"socket,id=qmp,fd={qmp_fd}", "-mon", "chardev=qmp,mode=control"]
    if console_fd >= 0:
        argv += ["-chardev", f"socket,id=console,fd={console_fd}", "-serial", "chardev:console"]
    for index, disk in enumerate(disks):
        argv += ["-blockdev", json.dumps(disk)]
        argv += ["-device", f"virtio-blk-pci,drive={disk['node-name']},bootindex={index + 1}"]
    argv += ["-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"]
    return [*argv, "-device", "pvpanic", *_network(order, tap_fd)]


def _board(order: MachineOrder) -> list[str]:
    accel = "kvm" if order.accel == "kvm" else f"tcg,tb-size={CODE_CACHE_MIB}"
    processor = "host" if order.accel == "kvm" else "max"
    argv = ["-machine", "q35", "-accel", accel, "-cpu", processor]
    argv += ["-m", f"{-(-order.memory // MIB)}M", "-smp", str(order.processors)]
    if order.firmware:
        code = {"driver": "file", "filename": order.firmware, "node-name": "firmware", "read-only": True}
        argv += ["-blockdev", json.dumps(code), "-machine", "pflash0=firmware"]
    for flag, value in (("-kernel", order.kernel), ("-initrd", order.initrd), ("-append", order.cmdline)):
        if value:
            argv += [flag, value]
    return argv


def _sandbox(runas: str, *, has_sandbox: bool) -> list[str]:
    """No new programs, no old system calls. Who changes its user has to be allowed to."""
    options = ["-runas", runas] if runas else []
    if has_sandbox:
        change = "allow" if runas else "deny"
        options += ["-sandbox", f"on,obsolete=deny,elevateprivileges={change},spawn=deny,resourcecontrol=deny"]
    return options


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
