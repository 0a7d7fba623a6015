"""Install what tests start (etcd, PostgreSQL, tmux, container engines, QEMU and a guest), where this machine lacks it.

    python tools/components.py

Tests start them on private ports and directories; the packages' own services are not started. Nothing is done, in a few
milliseconds, when all is there. Without root or apt it says what is missing, and the tests that need it skip.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# What a test looks for, and the Debian package that brings it.
PACKAGES = {
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "postgres": "postgresql",
    "ip": "iproute2",
    "iptables": "iptables",
    "tmux": "tmux",
    "dockerd": "docker.io",
    "podman": "podman",
    "runc": "runc",
    "busybox": "busybox-static",
    "docker-registry": "docker-registry",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
}
#: Of the guest that tests boot: only unpacked, as a kernel of the machine's own is none of our business.
KERNEL = "linux-image-cloud-amd64"
KERNELS = Path("/var/cache/roost-guest")  # as roost_lab/components/guest.py
FOLDERS = ("/usr/sbin", "/sbin")  # not on every PATH
POSTGRES = "postgresql/*/bin/postgres"  # under /usr/lib, by version, on no PATH
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# Tests want the programs, not the services.\nexit 101\n"
INSTALL_S = 600  # 20 s are usual; a slow mirror is no reason to hang


def main() -> int:
    """0 when all is there or cannot be had here; apt's own code when it failed."""
    missing = [package for program, package in PACKAGES.items() if not found(program)]
    if not missing and has_kernel():
        return 0
    names = " ".join(missing) or KERNEL
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"components: missing: {names}. The tests that need them skip; as root: apt-get install -y {names}")
        return 0
    print(f"components: installing {names}", flush=True)
    with no_services():
        code = install(missing) or unpack_kernel()
        if code != 0:  # a fresh machine knows no package before its first update
            subprocess.run(["apt-get", "update", "-qq"], timeout=INSTALL_S, check=False)
            code = install(missing) or unpack_kernel()
    if code != 0:
        print(f"components: apt-get could not install {names} (see above)", file=sys.stderr)
    return code


def found(program: str) -> bool:
    """Is it on this machine?"""
    if program == "postgres":
        return any(Path("/usr/lib").glob(POSTGRES)) or shutil.which(program) is not None
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), *FOLDERS))) is not None


def install(packages: list[str]) -> int:
    """apt's exit code. It waits for another apt that is under way."""
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *packages]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, timeout=INSTALL_S, check=False).returncode


def has_kernel() -> bool:
    return any(KERNELS.glob("boot/vmlinuz-*"))


def unpack_kernel() -> int:
    """The kernel that Debian has for guests now. The exit code of what failed."""
    if has_kernel():
        return 0
    asked = subprocess.run(["apt-cache", "depends", KERNEL], capture_output=True, text=True, check=False)
    names = [line.split()[-1] for line in asked.stdout.splitlines() if "Depends:" in line]
    if not names:
        return asked.returncode or 1
    with tempfile.TemporaryDirectory() as folder:
        command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", names[0]]
        code = subprocess.run(command, cwd=folder, timeout=INSTALL_S, check=False).returncode
        for package in Path(folder).glob("*.deb"):
            draft = KERNELS.with_suffix(".new")
            shutil.rmtree(draft, ignore_errors=True)
            code = subprocess.run(["dpkg-deb", "-x", package, draft], timeout=INSTALL_S, check=False).returncode
            if code == 0:
                draft.rename(KERNELS)
        return code


@contextlib.contextmanager
def no_services() -> Iterator[None]:
    """While this lasts, no package starts a daemon. A policy of the machine's own is left as it is."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text(POLICY_TEXT)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
