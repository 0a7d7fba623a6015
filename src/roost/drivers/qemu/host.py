"""What virtual machines of a node are made with: its QEMU, and the images and bridges that its operator named."""

import msgspec

from roost.ports.driver import Machine

UEFI, KVM, TCG = "firmware/uefi", "accel/kvm", "accel/tcg"


class QemuProgram(msgspec.Struct, frozen=True):
    """The QEMU of a machine, as it was found."""

    program: str
    version: str
    has_kvm: bool = False  # a guest has run with it
    firmware: str = ""  # the file of UEFI


class MachineHost(msgspec.Struct, frozen=True):
    directory: str = ""  # of disks
    images: dict[str, str] = {}  # the files by their names
    bridges: dict[str, str] = {}  # the interfaces by their names
    qemu: QemuProgram | None = None  # None: it runs no virtual machines

    def offers(self) -> tuple[str, ...]:
        """KIND/NAME, as documents ask for them."""
        if self.qemu is None:
            return ()
        found = {TCG, *(f"image/{name}" for name in self.images), *(f"bridge/{name}" for name in self.bridges)}
        found |= {KVM} if self.qemu.has_kvm else set()
        found |= {UEFI} if self.qemu.firmware else set()
        return tuple(sorted(found))

    def labels(self) -> dict[str, str]:
        return {"qemu": self.qemu.version} if self.qemu is not None else {}


class MachineWanted(msgspec.Struct, frozen=True):
    """A machine whose files are still to be found and checked: `find_files` does, once its inputs are there."""

    machine: Machine
    sources: dict[str, str]  # what its document calls them
    arch: str = ""
