"""The files of one start of QEMU, opened for it: it may have another user, which cannot open them by their names."""

import os

from roost.keeper.machines.command import MachineFiles
from roost.keeper.machines.disks import DisksRefused, form_of
from roost.keeper.machines.order import MachineOrder

COPY_BYTES = 1 << 30  # at a time


class OpenFiles:
    """`named` is for the command line. Kernels are read by name: another user gets copies in memory, where it has to.

    Descriptors are closed by `close`, when QEMU has inherited them.
    """

    def __init__(self, order: MachineOrder, seed: bytes, *, copies: bool, from_state: bool) -> None:
        """Raises DisksRefused."""
        self.fds: list[int] = []
        try:
            disks = [self._disk(order.dir, disk) for disk in order.disks]
            if seed:
                disks.append(self._seed(seed))
            disk_fds = list(self.fds)
            boot = [self._boot(path, copies=copies) for path in (order.kernel, order.initrd, order.firmware)]
            state_fd = os.open(order.state, os.O_RDONLY) if from_state else -1
            self.fds += [state_fd] if from_state else []
            self.named = MachineFiles(boot, disks, disk_fds, state_fd)
        except OSError as error:
            self.close()
            raise DisksRefused(f"{error.filename}: {error.strerror}") from error

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def _disk(self, directory: str, disk: dict[str, object]) -> dict[str, str]:
        path, base = f"{directory}/{disk['name']}.qcow2", str(disk.get("base") or "")
        device = {
            "driver": "qcow2", "node-name": f"disk-{disk['name']}", "discard": "unmap", "file.driver": "file",
            "file.filename": self._set(os.open(path, os.O_RDWR)), "file.discard": "unmap",
        }  # fmt: skip
        if base:
            device |= {
                "backing.driver": form_of(base), "backing.read-only": "on", "backing.file.driver": "file",
                "backing.file.filename": self._set(os.open(base, os.O_RDONLY)), "backing.file.read-only": "on",
            }  # fmt: skip
        return device

    def _seed(self, data: bytes) -> dict[str, str]:
        """A file in memory only: its secrets never come to a disk."""
        fd = memory(data)
        name = self._set(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
        os.close(fd)
        return {
            "driver": "raw", "node-name": "seed", "read-only": "on", "file.driver": "file", "file.filename": name,
            "file.locking": "off", "file.read-only": "on",
        }  # fmt: skip

    def _set(self, fd: int) -> str:
        self.fds.append(fd)
        return f"/dev/fdset/{len(self.fds) - 1}"

    def _boot(self, path: str, *, copies: bool) -> str:
        if not path or not copies or is_open_to_all(path):
            return path
        source = os.open(path, os.O_RDONLY)
        try:
            fd = memory()
            self.fds.append(fd)
            while os.sendfile(fd, source, None, COPY_BYTES):
                pass
        finally:
            os.close(source)
        return f"/proc/self/fd/{fd}"


def is_open_to_all(path: str) -> bool:
    """Whether every user may read it, on the way to it also."""
    if not os.stat(path).st_mode & 0o004:
        return False
    folder = os.path.dirname(os.path.realpath(path))
    while os.stat(folder).st_mode & 0o001 and folder != "/":
        folder = os.path.dirname(folder)
    return folder == "/"


def memory(data: bytes = b"") -> int:
    fd = os.memfd_create("machine", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd
