"""Projects: who asks, with which weight and within which quota."""

from heapq import nsmallest

from roost.core.queue.fair_share import totals_of
from roost.model import limits
from roost.model.errors import NotFound
from roost.model.events import SetProject, Unset
from roost.model.records.project import Project, check_project
from roost.model.spec.document import read_resource
from roost.model.spec.placement import between
from roost.schema.projects import ProjectPage, ProjectSettings, ProjectView
from roost.server.operations.context import Call, Context
from roost.server.operations.parameters import PAGE_MAX, After, Limit
from roost.server.views.operators import project_view


async def list_projects(call: Call, limit: Limit = PAGE_MAX, after: After = "") -> ProjectPage:
    """List projects by name: those that have settings, and those that have workloads."""
    context = call.context
    state = await context.engine.settled()
    waiting, totals = context.census.of(state).projects, totals_of(state.fleet)
    access = call.principal.access
    known = filter(access.sees, {*state.projects, *waiting, *state.project_usage})
    names = nsmallest(limit + 1, (name for name in known if name > after))
    items = [project_view(state, name, waiting.get(name, 0), totals) for name in names[:limit]]
    return ProjectPage(state.revision, items, names[limit - 1] if len(names) > limit else None)


async def get_project(call: Call, project: str) -> ProjectView:
    """Show a project: its settings, its allocation, its share."""
    context = call.context
    state = await context.engine.settled()
    known = project in state.projects or project in state.project_usage or project in context.census.of(state).projects
    if not known:
        raise NotFound(
            f"there is no project {project:.100}: it has neither settings nor workloads", params={"project": project}
        )
    return _view(context, project)


async def set_project(call: Call, project: str, fields: ProjectSettings) -> ProjectView:
    """Set weight and quota of a project. Allocations above a new quota stay."""
    between(len(fields.quota), 0, limits.RESOURCE_KINDS_MAX, "quota", "kinds of resources")
    quota = {name: read_resource(name, amount, f"quota.{name:.80}") for name, amount in fields.quota.items()}
    wanted = Project(project, fields.weight, quota, fields.borrow, fields.counted)
    check_project(wanted)
    context = call.context
    await call.ask(lambda number: SetProject(number, wanted))
    return _view(context, project)


async def unset_project(call: Call, project: str) -> None:
    """Remove the settings of a project: weight 1 and no quota. Its workloads stay."""
    await call.ask(lambda number: Unset(number, "project", project))


def _view(context: Context, project: str) -> ProjectView:
    state = context.engine.state
    return project_view(state, project, context.census.of(state).projects.get(project, 0), totals_of(state.fleet))
