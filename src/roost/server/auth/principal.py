"""A principal: its name, its address and its access. Roles are compiled once, so that a check costs nothing."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from roost.model.records.access import ADMIN, EVERYWHERE, RANKS, ROLES, VIEWER
from roost.model.records.opaque import By
from roost.schema.pools import PoolSetting, PoolView
from roost.schema.reason_text import HIDDEN, Visible, render_note

PRINCIPAL = "roost_principal"  # where a request's scope holds it


class Access:
    """A rank in all projects, and ranks in single ones. Immutable."""

    __slots__ = ("everywhere", "highest", "ranks")

    def __init__(self, roles: Mapping[str, str]) -> None:
        # A role that a later version knows gives nothing here.
        ranks = {project: RANKS[role] for project, role in roles.items() if role in RANKS}
        self.everywhere = ranks.pop(EVERYWHERE, 0)
        self.ranks = ranks
        self.highest = max(self.everywhere, *ranks.values(), 0)

    def rank_in(self, project: str) -> int:
        """0: the project is hidden."""
        rank = self.ranks.get(project, 0)
        return rank if rank > self.everywhere else self.everywhere

    def sees(self, project: str) -> bool:
        return self.everywhere >= VIEWER or project in self.ranks

    @property
    def sees_all(self) -> bool:
        return self.everywhere >= VIEWER

    def roles(self) -> dict[str, str]:
        ranks = {EVERYWHERE: self.everywhere, **self.ranks} if self.everywhere else self.ranks
        return {project: ROLES[rank - 1] for project, rank in ranks.items()}

    def covers(self, projects: tuple[str, ...], rank: int) -> bool:
        return all(
            (self.everywhere if project == EVERYWHERE else self.rank_in(project)) >= rank for project in projects
        )


NOTHING = Access({})
ALL = Access({EVERYWHERE: ROLES[ADMIN - 1]})


class Principal(NamedTuple):
    """The caller of a request. Names: `root`, `token:NAME`, `user:SUBJECT`."""

    name: str
    where: str  # an address
    access: Access
    expires_ms: int = 0  # of its token; 0: never
    still: Callable[[], bool] = bool  # whether it would be admitted again with the same roles
    records: tuple[str, ...] = ()  # keys of the records that this depends on

    @property
    def by(self) -> By:
        return By(self.name, self.where)


Pool = TypeVar("Pool", PoolView, PoolSetting)


class Redactor:
    """Hides projects from one principal. `is_open`: it sees all."""

    __slots__ = ("_access", "is_open", "visible")

    def __init__(self, access: Access) -> None:
        self._access = access
        self.is_open = access.sees_all
        self.visible: Visible | None = None if self.is_open else access.sees

    def sees(self, key: str) -> bool:
        """Whether a workload or an instance, as PROJECT/NAME or PROJECT/NAME.INDEX, is visible."""
        return self.is_open or self._access.sees(key.partition("/")[0])

    def key(self, key: str) -> str:
        return key if self.sees(key) else HIDDEN

    def pool(self, view: Pool) -> Pool:
        """A pool without hidden projects, and without the names of their work in its reason."""
        if self.is_open:
            return view
        own = [project for project in view.projects if self._access.sees(project)]
        return msgspec.structs.replace(view, projects=own, reason=render_note(view.reason, self.visible))
