"""How a program becomes a process: found in the PATH of its run, and started by posix_spawn."""

import errno
import os
import signal

MESSAGES = {
    errno.ENOENT: "no such program (or its interpreter is missing)",
    errno.EACCES: "not executable, or on a filesystem that forbids it",
    errno.ENOEXEC: "not a program this machine can run (a script needs a #! line)",
    errno.E2BIG: "arguments and environment are too large",
}


class SpawnRefused(Exception):
    """It cannot be started; the message names the program."""


def start(argv: list[str], env: dict[str, str], out: int, err: int, ignored: list[int]) -> int:
    """In the current directory and in a session of its own. Returns the pid.

    posix_spawn, never fork: it costs the same however large we are. Descriptor 0 is ours, all others close on exec.
    """
    path = argv[0] if "/" in argv[0] else program(argv[0], env["PATH"])
    actions = ((os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2))
    try:
        return os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=ignored)
    except OSError as error:
        raise SpawnRefused(f"{argv[0]}: {MESSAGES.get(error.errno or 0, error.strerror)}") from error
    except ValueError as error:  # a NUL inside, or half a surrogate pair
        raise SpawnRefused(f"{argv[0]}: {error}") from error


def program(name: str, search: str) -> str:
    """What a shell would find: a name without a slash, in the PATH of the run."""
    for directory in search.split(":"):
        path = f"{directory or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise SpawnRefused(f"{name}: not found in PATH ({search})")


def ignored_signals() -> list[int]:
    """Those a child has to have reset: Python ignores SIGPIPE, we some, our parent may ignore others."""
    return [number for number in range(1, signal.NSIG) if signal.getsignal(number) == signal.SIG_IGN]
