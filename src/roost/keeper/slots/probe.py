"""What isolation this machine allows to this user, found out by doing it once: a slot that runs one program."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from roost.keeper.isolation import TOOL
from roost.keeper.slots import messages, seccomp
from roost.keeper.slots.messages import Broken
from roost.keeper.slots.slot import SlotSpec

PROBE_S_MAX = 20.0  # it takes a tenth of a second
PROGRAM = "/bin/true"


def offered(user: int) -> tuple[str, str]:
    """The best level that this process can give to runs, and why it is not better (or what it lacks).

    `user`: a user id that runs may have; without root, they have our own.
    """
    argv = [sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), "__main__.py"), "--probe", str(user)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=PROBE_S_MAX, check=False, stdin=subprocess.DEVNULL)
        answer = json.loads(done.stdout)
        problem = str(answer["problem"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        problem = f"the probe failed: {type(error).__name__}"
    if not problem:
        lacks = "" if seccomp.is_known() else f"no list of system calls for {os.uname().machine}"
        return "sandbox", lacks
    if os.geteuid() == 0 and shutil.which(TOOL):
        return "user", problem
    return "none", problem


def main() -> int:
    user = int(sys.argv[2]) if os.geteuid() == 0 else os.geteuid()
    with tempfile.TemporaryDirectory(prefix="roost-probe-") as home:
        os.chmod(home, 0o711)
        print(json.dumps({"problem": _problem(user, home)}), flush=True)
    return 0


def _problem(user: int, home: str) -> str:
    """Why no program can be run in a slot; empty: one was."""
    from roost.keeper.slots.zygote import make

    place = f"{home}/1"
    os.mkdir(place, 0o700)
    if os.geteuid() == 0:
        os.chown(place, user, user)
    ours, theirs = messages.pair()
    ours.settimeout(PROBE_S_MAX / 2)
    make(theirs, [], SlotSpec(user, user if os.geteuid() == 0 else os.getegid(), home, [], [], 0), (ours,))
    theirs.close()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        while True:
            message, _ = messages.receive(ours)
            if message[0] in ("failed", "refused"):
                return str(message[1])
            if message[0] == "ready":
                messages.send(ours, ("start", [PROGRAM], {"PATH": "/bin"}, place, True, False), (null, null))
            if message[0] == "over":
                return "" if message[1] == 0 else f"{PROGRAM} ended with code {message[1]}"
    except (Broken, TimeoutError) as error:
        return f"a slot ended while it was made: {error}"
    finally:
        ours.close()
