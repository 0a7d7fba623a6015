"""How a run is kept apart from other runs and from the machine: in a slot, or only by a user of its own."""

import os

from roost.keeper.spawn import SpawnRefused, program

LEVELS = ("user", "sandbox")
TOOL = "setpriv"  # of util-linux: changes the user of a run that has no slot


class OrderedIsolation:
    """As ordered. Runs with equal keys may have one slot, one after another."""

    def __init__(self, level: str, user: int, group: int, project: str) -> None:
        self.level = level
        self.user = user
        self.group = group
        self.project = project

    @property
    def in_slot(self) -> bool:
        return self.level == "sandbox"

    def key(self, home: str) -> tuple[str, int, int, str]:
        return (self.project, self.user, self.group, home)

    def as_user(self, argv: list[str], env: dict[str, str]) -> list[str]:
        """The command that becomes that user first. Raises SpawnRefused, as for the command itself."""
        if os.geteuid() != 0:
            return argv
        path = argv[0] if "/" in argv[0] else program(argv[0], env["PATH"])
        if not os.access(path, os.X_OK):
            raise SpawnRefused(f"{argv[0]}: no such program, or not executable")
        ids = ["--reuid", str(self.user), "--regid", str(self.group), "--clear-groups"]
        return [program(TOOL, os.defpath), *ids, "--no-new-privs", "--bounding-set=-all", "--", *argv]
