"""A principal: who asks, from where, and what it may do. Roles are compiled once, so that a look costs nothing."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from roost.model.access import ADMIN, EVERYWHERE, RANKS, ROLES, VIEWER
from roost.model.audit import By

PRINCIPAL = "roost_principal"  # where a request's scope holds it


class Access:
    """What somebody may do where: a rank everywhere, and ranks in projects. Never changed once it is made."""

    __slots__ = ("everywhere", "highest", "ranks")

    def __init__(self, roles: Mapping[str, str]) -> None:
        # A role that a later version knows gives nothing here.
        ranks = {project: RANKS[role] for project, role in roles.items() if role in RANKS}
        self.everywhere = ranks.pop(EVERYWHERE, 0)
        self.ranks = ranks
        self.highest = max(self.everywhere, *ranks.values(), 0)

    def rank_in(self, project: str) -> int:
        """The rank in a project; 0: it is foreign."""
        rank = self.ranks.get(project, 0)
        return rank if rank > self.everywhere else self.everywhere

    def sees(self, project: str) -> bool:
        """Whether anything of a project may be seen."""
        return self.everywhere >= VIEWER or project in self.ranks

    @property
    def sees_all(self) -> bool:
        """Whether there is no foreign project."""
        return self.everywhere >= VIEWER

    def roles(self) -> dict[str, str]:
        """The roles as they were given."""
        ranks = {EVERYWHERE: self.everywhere, **self.ranks} if self.everywhere else self.ranks
        return {project: ROLES[rank - 1] for project, rank in ranks.items()}

    def covers(self, projects: tuple[str, ...], rank: int) -> bool:
        """Whether a rank is held in all of these projects."""
        return all((self.everywhere if each == EVERYWHERE else self.rank_in(each)) >= rank for each in projects)


NOTHING = Access({})
ALL = Access({EVERYWHERE: ROLES[ADMIN - 1]})


class Principal(NamedTuple):
    """Who asks. Names: `root`, `token:NAME`, `user:SUBJECT`."""

    name: str
    where: str  # an address
    access: Access
    expires_ms: int = 0  # when what it has shown ends; 0: never
    still: Callable[[], bool] = bool  # whether it would be let in again with the same roles

    @property
    def by(self) -> By:
        """For the audit log."""
        return By(self.name, self.where)
