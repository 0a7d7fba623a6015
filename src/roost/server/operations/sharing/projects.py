"""Projects: who asks, with which weight and within which quota."""

from collections.abc import Sequence

from roost.core.queue.fair_share import totals_of
from roost.model import limits
from roost.model.errors import NotFound
from roost.model.events import SetProject, Unset
from roost.model.records.access import ADMIN
from roost.model.records.project import Project, check_project
from roost.model.spec.placement import between
from roost.model.spec.resources import read_resource
from roost.schema.projects import ProjectPage, ProjectSettings, ProjectView
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of
from roost.server.operations.permit import Rule, Scope, permit
from roost.server.views.operators import project_view


async def list_projects(call: Call, limit: Limit = PAGE_MAX, after: After = "") -> ProjectPage:
    """List projects by name: those that have settings, and those that have workloads."""
    names, following = page_of(filter(call.principal.access.sees, await _known(call)), limit, after)
    return ProjectPage(call.engine.state.revision, await _views(call, names), following)


async def get_project(call: Call, project: str) -> ProjectView:
    """Show a project: its settings, its allocation, its share."""
    if project not in await _known(call):
        raise NotFound(
            f"there is no project {project:.100}: it has neither settings nor workloads", params={"project": project}
        )
    return (await _views(call, [project]))[0]


async def set_project(call: Call, project: str, fields: ProjectSettings) -> ProjectView:
    """Set weight, quota and isolation of a project. Allocations above a new quota stay."""
    between(len(fields.quota), 0, limits.RESOURCE_KINDS_MAX, "quota", "kinds of resources")
    quota = {name: read_resource(name, amount, f"quota.{name:.80}") for name, amount in fields.quota.items()}
    wanted = Project(
        project, fields.weight, quota, fields.borrow, fields.counted, fields.isolation, tuple(fields.run_as)
    )
    check_project(wanted)
    await _permit_change(call, wanted)
    await call.ask(lambda number: SetProject(number, wanted))
    return (await _views(call, [project]))[0]


async def unset_project(call: Call, project: str) -> None:
    """Remove the settings of a project: weight 1 and no quota. Its workloads stay."""
    await _permit_change(call, Project(project))
    await call.ask(lambda number: Unset(number, "project", project))


async def _permit_change(call: Call, wanted: Project) -> None:
    """An operator sets weight and quota. What the processes of a project may be on nodes is for administrators."""
    existing = (await call.state()).projects.get(wanted.name, Project(wanted.name))
    if (wanted.isolation, wanted.run_as) != (existing.isolation, existing.run_as):
        permit(call.principal, Rule(ADMIN, Scope.ALL, leader=True))


async def _known(call: Call) -> set[str]:
    state = await call.state()
    return {*state.projects, *state.project_usage, *(await call.context.census.of(state)).projects}


async def _views(call: Call, names: Sequence[str]) -> list[ProjectView]:
    state = call.engine.state
    waiting, totals = (await call.context.census.of(state)).projects, totals_of(state.fleet)
    return [project_view(state, name, waiting.get(name, 0), totals) for name in names]
