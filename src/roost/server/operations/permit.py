"""Permissions: who may perform an operation, and in which projects."""

from roost.model.errors import Forbidden, NotFound
from roost.model.records.access import EVERYWHERE, ROLES
from roost.server.auth.principal import Principal
from roost.server.operations.table import Rule, Scope


def permit(principal: Principal, rule: Rule, project: str = "") -> None:
    """Refuse a principal without the role that an operation needs. `project`: the one that it is about."""
    rank, scope = rule.rank, rule.scope
    if scope in (Scope.OPEN, Scope.KNOWN):  # the outermost layer has asked who it is, where that matters
        return
    access = principal.access
    if scope is Scope.PROJECT:
        if project == EVERYWHERE:
            held, rank = access.everywhere, max(rank, rule.rank_of_all)
        else:
            held = access.rank_in(project)
        if not held and project != EVERYWHERE:
            raise NotFound(f"there is no project {project:.100}, or it is none of yours", params={"project": project})
        if held < rank:
            where = "everywhere" if project == EVERYWHERE else f"in project {project:.100}"
            facts = {"role": ROLES[rank - 1], "project": project[:100]}
            raise Forbidden(f"this needs the role {ROLES[rank - 1]} {where}", params=facts)
    elif scope is Scope.SOMEWHERE and access.highest < rank:
        raise Forbidden(
            f"this needs the role {ROLES[rank - 1]} in a project, or everywhere", params={"role": ROLES[rank - 1]}
        )
    elif scope is Scope.ALL and access.everywhere < rank:
        raise Forbidden(
            f"this needs the role {ROLES[rank - 1]} everywhere", params={"role": ROLES[rank - 1], "project": EVERYWHERE}
        )
