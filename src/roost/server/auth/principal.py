"""A principal: who asks, from where, and what it may do. Roles are compiled once, so that a look costs nothing."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from roost.model.records.access import ADMIN, EVERYWHERE, RANKS, ROLES, VIEWER
from roost.model.records.opaque import By
from roost.schema.pools import PoolSetting, PoolView
from roost.schema.reason_text import HIDDEN, Visible, render_note

PRINCIPAL = "roost_principal"  # where a request's scope holds it


class Access:
    """What a principal may do where: a rank everywhere, and ranks in projects. Never changed once it is made."""

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
        return all(
            (self.everywhere if project == EVERYWHERE else self.rank_in(project)) >= rank for project in projects
        )


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


Pool = TypeVar("Pool", PoolView, PoolSetting)


class Redactor:
    """What one principal may read. A principal that sees every project reads everything."""

    __slots__ = ("_access", "is_open", "visible")

    def __init__(self, access: Access) -> None:
        self._access = access
        self.is_open = access.sees_all
        self.visible: Visible | None = None if self.is_open else access.sees

    def sees(self, key: str) -> bool:
        """Whether a workload or an instance, as PROJECT/NAME or PROJECT/NAME.INDEX, may be seen."""
        return self.is_open or self._access.sees(key.partition("/")[0])

    def key(self, key: str) -> str:
        """The key of a workload or an instance, if it may be seen."""
        return key if self.sees(key) else HIDDEN

    def pool(self, view: Pool) -> Pool:
        """A pool without the foreign projects that it is for, and without the names of their work in its reason."""
        if self.is_open:
            return view
        own = [project for project in view.projects if self._access.sees(project)]
        return msgspec.structs.replace(view, projects=own, reason=render_note(view.reason, self.visible))
