"""Which projects a caller may name in what it sends."""

from collections.abc import Iterable

from roost.model.errors import Forbidden
from roost.model.events import WorkloadSpec
from roost.model.records.access import ROLES, SUBMITTER
from roost.server.auth.principal import Principal


def permit_in(principal: Principal, projects: Iterable[str], rank: int) -> None:
    """Refuse a principal without this role in projects that a body names."""
    for project in dict.fromkeys(projects):
        if not principal.access.covers((project,), rank):
            raise Forbidden(
                f"this needs the role {ROLES[rank - 1]} in project {project:.100}",
                path="project",
                params={"role": ROLES[rank - 1], "project": project[:100]},
            )


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
