"""Permissions: the rule of an operation, who may perform it, which projects a body may name, what errors may tell."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from roost.model.errors import Forbidden, NotFound, RoostError
from roost.model.events import WorkloadSpec
from roost.model.records.access import EVERYWHERE, ROLES, SUBMITTER
from roost.schema.reason_text import error_message, error_params
from roost.server.auth.principal import Principal

PROJECTS_NAMED_MAX = 5  # in a message


class Scope(Enum):
    """Where a role has to be held."""

    OPEN = "nowhere: also for callers without a token"
    KNOWN = "nowhere: for every caller that is known"
    SOMEWHERE = "in some project; what comes of it is only of projects that may be seen, or is checked by name"
    PROJECT = "in the project that the operation is about (its first argument), or everywhere"
    ALL = "everywhere"


class Rule(NamedTuple):
    """The least role, as its rank, where it has to be held, whether only the leader can answer; and the REST route.

    Only the leader has the queue, the agents, the logs that are being sent, and the counts of deliveries.
    """

    rank: int
    scope: Scope
    leader: bool
    route: str = ""  # METHOD PATH
    status: int = 200  # of the answer; 204 where there is none
    rank_of_all: int = 0  # with Scope.PROJECT: the least role for what belongs to all projects (`*`), if it is another


def permit(principal: Principal, rule: Rule, project: str = "") -> None:
    """Refuse a principal without the role that an operation needs. `project`: the one that it is about."""
    rank, access = rule.rank, principal.access
    if rule.scope is Scope.PROJECT and project == EVERYWHERE:
        rank = max(rank, rule.rank_of_all)
        if access.everywhere < rank:
            raise _forbidden(rank, "everywhere", project=project)
    elif rule.scope is Scope.PROJECT:
        if not access.rank_in(project):
            raise _no_project(project)
        if access.rank_in(project) < rank:
            raise _forbidden(rank, f"in project {project:.100}", project=project[:100])
    elif rule.scope is Scope.SOMEWHERE and access.highest < rank:
        raise _forbidden(rank, "in a project, or everywhere")
    elif rule.scope is Scope.ALL and access.everywhere < rank:
        raise _forbidden(rank, "everywhere", project=EVERYWHERE)


def permit_in(principal: Principal, projects: Iterable[str], rank: int) -> None:
    for project in dict.fromkeys(projects):
        if not principal.access.covers((project,), rank):
            held = sorted(name for name, own in principal.access.ranks.items() if own >= rank)[:PROJECTS_NAMED_MAX]
            instead = f"; you have it in {', '.join(held)}" if held else ""
            raise _forbidden(rank, f"in project {project:.100}{instead}", "project", project=project[:100])


def permit_filter(principal: Principal, project: str) -> None:
    """Refuse a list of one project of which nothing may be seen: an empty one would look like a fact."""
    if project and not principal.access.sees(project):
        raise _no_project(project)


def _no_project(project: str) -> NotFound:
    return NotFound(f"there is no project {project:.100}, or it is none of yours", params={"project": project})


def _forbidden(rank: int, where: str, path: str = "", **params: str) -> Forbidden:
    role = ROLES[rank - 1]
    return Forbidden(f"this needs the role {role} {where}", path=path, params={"role": role, **params})


def permit_wanted(principal: Principal, wanted: Iterable[WorkloadSpec]) -> None:
    """Refuse workloads for projects that are not the caller's, and rules about work that it cannot see.

    Who may ask to be near any workload could find out by guessing which there are, and on which nodes.
    """
    wanted = tuple(wanted)
    permit_in(principal, (spec.project for spec in wanted), SUBMITTER)
    if principal.access.sees_all:
        return
    for spec in wanted:
        for rule in spec.policy.ask.affinity.rules if spec.policy.ask.affinity is not None else ():
            project = rule.selector.partition("/")[0].partition("?")[0]
            if not principal.access.sees(project):
                message = f"a rule of {spec.name} is about project {project}, in which you have no role"
                raise Forbidden(message, path=f"placement.{rule.kind}")


@contextmanager
def redacted(principal: Principal) -> Iterator[None]:
    """Hide the names of other projects' work in errors: a stale plan says what has changed."""
    try:
        yield
    except RoostError as error:
        visible = None if principal.access.sees_all else principal.access.sees
        error.message, error.params = error_message(error, visible), error_params(error, visible)
        error.reason, error.text = None, ()
        raise
