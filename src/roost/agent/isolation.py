"""How this agent isolates runs: the level that its machine offers, and a user id of its own for each project."""

import json
import os
from pathlib import Path

from roost.agent.config import replace_file
from roost.keeper.slots.probe import offered
from roost.model.errors import Invalid
from roost.ports.driver import Isolation

LEVELS = ("none", "user", "sandbox")
FILE_NAME = "users.json"
PROBE_USER = 1_900_000_000


class RunIsolation:
    """`of` is called for every run. A user id stays with its project, also when no run of it is left."""

    def __init__(self, directory: str, level: str, uids: range) -> None:
        self.level = level
        self._path = Path(directory, FILE_NAME)
        self._uids = uids
        self._of_project: dict[str, int] = json.loads(self._path.read_text("ascii")) if self._path.exists() else {}

    def of(self, project: str) -> Isolation | None:
        """Raises Invalid when there is no user id left."""
        if self.level == "none":
            return None
        if os.geteuid() != 0:
            return Isolation(self.level, project, os.geteuid(), os.getegid())
        user = self._of_project.get(project) or self._add(project)
        return Isolation(self.level, project, user, user)

    def _add(self, project: str) -> int:
        taken = set(self._of_project.values())
        user = next((user for user in self._uids if user not in taken), 0)
        if not user:
            raise Invalid("", "this node has no user id left for another project; widen `roost agent --uid-range`")
        self._of_project[project] = user
        replace_file(str(self._path), json.dumps(self._of_project))
        return user


def chosen_level(wanted: str) -> tuple[str, str]:
    """The level of runs here, and why it is not better. Raises Invalid if more is wanted than there is."""
    if wanted == "none":
        return "none", "--isolation none"
    level, problem = offered(PROBE_USER)
    if wanted and LEVELS.index(level) < LEVELS.index(wanted):
        raise Invalid("--isolation", f"this machine offers {level}: {problem}")
    return (wanted, f"--isolation {wanted}") if wanted and wanted != level else (level, problem)
