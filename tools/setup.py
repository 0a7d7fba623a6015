"""Make the virtual environment from nothing but Python and the hashed lock. Run by make, never twice at once.

    python3 tools/setup.py .venv

Uses uv when the machine has it, pip otherwise. Standard library only, and old syntax up to the version check.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this file is the one that says so
    sys.exit(f"Roost needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: make PYTHON=python3.12")

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements-dev.lock"


def main(venv: Path, stamp: Path) -> None:
    """Leave a venv that holds the lock and Roost itself, and a stamp that says so."""
    venv.mkdir(parents=True, exist_ok=True)
    with open(venv / ".setup.lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if is_ready(stamp):
            return
        python = create(venv)
        install = installer(python)
        run(*install, "--require-hashes", "-r", LOCK)
        # After the lock, because building Roost needs the hatchling that is in it.
        run(*install, "--no-deps", "--no-build-isolation", "-e", ROOT, "-e", ROOT / "lab")
        # Bytecode halves the time to start, and where writing it is switched off it would never come to be.
        run(python, "-m", "compileall", "-q", ROOT / "src", ROOT / "lab")
        stamp.touch()


def is_ready(stamp: Path) -> bool:
    """Whether another process finished while we waited for our turn."""
    inputs = (LOCK, ROOT / "pyproject.toml")
    return stamp.exists() and all(stamp.stat().st_mtime >= path.stat().st_mtime for path in inputs)


def create(venv: Path) -> Path:
    """The venv's Python, of the version we were started with."""
    python = venv / "bin" / "python"
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not works(python, "-c", ""):
        report(f"{venv} with Python {wanted}")
        run(sys.executable, "-m", "venv", "--without-pip", venv)
    found = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if found != wanted:
        sys.exit(f"{venv} is Python {found}, asked for {wanted}. Try: make VENV=.venv-{wanted} PYTHON={sys.executable}")
    return python


def installer(python: Path) -> list[object]:
    """The command that installs into the venv: uv if there is one, else the venv's own pip."""
    if works("uv", "--version"):
        report("install with uv")
        return ["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    report("install with pip (about a minute)")
    if not works(python, "-m", "pip", "--version"):
        if not works(python, "-c", "import ensurepip"):
            install_ensurepip()
        run(python, "-m", "ensurepip", "--default-pip")
    return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def install_ensurepip() -> None:
    """Debian keeps ensurepip in a package of its own."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"This Python has no ensurepip. Install it ({package} on Debian and Ubuntu), then try again.")
    run("apt-get", "update", "-qq")
    run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends", package)


def works(*command: object) -> bool:
    """Whether the command is there and succeeds."""
    try:
        return subprocess.run([str(word) for word in command], capture_output=True).returncode == 0
    except OSError:
        return False


def run(*command: object) -> None:
    """Run a command; when it fails, its own words are the explanation."""
    result = subprocess.run([str(word) for word in command], stdout=sys.stderr)
    if result.returncode != 0:
        sys.exit(f"setup: failed: {' '.join(str(word) for word in command)}")


def report(what: str) -> None:
    """One line for the developer."""
    print(f"setup: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(venv=Path(sys.argv[1]), stamp=Path(sys.argv[2]))
