"""How this agent isolates runs: the level that its machine offers, and a user id of its own for each project."""

import json
import os
import pwd
from pathlib import Path

from roost.agent.config import replace_file
from roost.keeper.slots.probe import offered
from roost.model.errors import Invalid
from roost.model.spec.document import Document
from roost.model.states import IsolationLevel
from roost.ports.driver import Isolation

FILE_NAME = "users.json"
ROOT = "root"
PROBE_USER = 1_900_000_000


class RunIsolation:
    """`of` is called for every run. A user id stays with its project, also when no run of it is left."""

    def __init__(self, directory: str, level: IsolationLevel, uids: range) -> None:
        self.level = level
        self._path = Path(directory, FILE_NAME)
        self._uids = uids
        self._of_project: dict[str, int] = json.loads(self._path.read_text("ascii")) if self._path.exists() else {}

    @property
    def has_users(self) -> bool:
        """Whether each project has a user of its own here, and a run may have another."""
        return self.level != IsolationLevel.NONE and os.geteuid() == 0

    def of(self, document: Document) -> Isolation | None:
        """Raises Invalid when it cannot be as the document needs it, or there is no user id left."""
        if not self.level.offers(document.isolation or ""):
            raise Invalid("isolation", f"this node offers {self.level}")
        if document.run_as and not self.has_users:
            raise Invalid("run_as", "this node cannot give runs a user: its agent is not root, or isolates nothing")
        if self.level == IsolationLevel.NONE:
            return None
        if os.geteuid() != 0:
            return Isolation(self.level, document.project, os.geteuid(), os.getegid())
        if document.run_as:
            return Isolation(self.level, document.project, *known_user(document.run_as))
        user = self._of_project.get(document.project) or self._add(document.project)
        return Isolation(self.level, document.project, user, user)

    def _add(self, project: str) -> int:
        taken = set(self._of_project.values())
        user = next((user for user in self._uids if user not in taken), 0)
        if not user:
            raise Invalid("", "this node has no user id left for another project; widen `roost agent --uid-range`")
        self._of_project[project] = user
        replace_file(str(self._path), json.dumps(self._of_project))
        return user


def known_user(name: str) -> tuple[int, int]:
    """A user of this machine and its group. Raises Invalid."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise Invalid("run_as", f"this node has no user {name}") from None
    if found.pw_uid == 0 and name != ROOT:
        raise Invalid("run_as", f"user {name} of this node is root")
    return found.pw_uid, found.pw_gid


def chosen_level(wanted: str) -> tuple[IsolationLevel, str]:
    """The level of runs here, and why it is not better. Raises Invalid if more is wanted than there is."""
    if wanted == "none":
        return IsolationLevel.NONE, "--isolation none"
    found, problem = offered(PROBE_USER)
    level = IsolationLevel(found)
    if not level.offers(wanted):
        raise Invalid("--isolation", f"this machine offers {level}: {problem}")
    return (IsolationLevel(wanted), f"--isolation {wanted}") if wanted and wanted != level else (level, problem)
