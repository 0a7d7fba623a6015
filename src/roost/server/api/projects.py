"""Projects: who asks, with which weight and within which quota."""

from heapq import nsmallest
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, put
from litestar.params import FromPath, QueryParameter

from roost.core.charge import totals_of
from roost.model import limits
from roost.model.document import read_resource
from roost.model.errors import NotFound
from roost.model.events import SetProject, Unset
from roost.model.placement import between
from roost.model.project import Project, check_project
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import Doors, ask, doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of
from roost.server.setting_views import ProjectView, project_view

PAGE_MAX = 1_000

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class ProjectPage(msgspec.Struct, frozen=True):
    """Projects by name. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[ProjectView]
    next: str | None = None


class ProjectSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weight and quota of a project; what is left out gets its default.

    Quota: `cpu` (10, "500m"), `memory`, `disk` ("4GiB"), `gpu`, `instances`, or any other resource; what it does not
    name is not bounded. `borrow`: it may go beyond with what other quotas leave. `counted`: it is only looked at.
    """

    weight: int = 1
    quota: dict[str, int | float | str] = {}
    borrow: bool = False
    counted: bool = False


@get("/v1/projects", operation_id="list_projects", responses=refusals(403, 422, 503))
async def list_projects(
    request: Request[Any, Any, Any],
    limit: PageLimit = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> ProjectPage:
    """List projects by name: those that have settings, and those that have workloads."""
    doors = doors_of(request)
    state = await doors.engine.settled()
    waiting, totals = doors.census.of(state).projects, totals_of(state.fleet)
    access = principal_of(request).access
    known = filter(access.sees, {*state.projects, *waiting, *state.charged})
    names = nsmallest(limit + 1, (name for name in known if name > after))
    items = [project_view(state, name, waiting.get(name, 0), totals) for name in names[:limit]]
    return ProjectPage(state.revision, items, names[limit - 1] if len(names) > limit else None)


@get("/v1/projects/{project:str}", operation_id="get_project", responses=refusals(403, 404, 503))
async def get_project(request: Request[Any, Any, Any], project: FromPath[str]) -> ProjectView:
    """Look at a project: its settings, what it holds, its share."""
    doors = doors_of(request)
    state = await doors.engine.settled()
    known = project in state.projects or project in state.charged or project in doors.census.of(state).projects
    if not known:
        raise NotFound(f"there is no project {project:.100}: it has neither settings nor workloads")
    return _view(doors, project)


@put(
    "/v1/projects/{project:str}",
    operation_id="set_project",
    operation_class=taking(ProjectSettings),
    responses=refusals(403, 409, 413, 415, 422, 503),
)
async def set_project(request: Request[Any, Any, Any], project: FromPath[str]) -> ProjectView:
    """Set weight and quota of a project. What it holds already beyond a new quota it keeps."""
    fields = await read_fields(request, ProjectSettings, required=True)
    between(len(fields.quota), 0, limits.RESOURCE_KINDS_MAX, "quota", "kinds of resources")
    quota = {name: read_resource(name, amount, f"quota.{name:.80}") for name, amount in fields.quota.items()}
    wanted = Project(project, fields.weight, quota, fields.borrow, fields.counted)
    check_project(wanted)
    doors = doors_of(request)
    await ask(request, lambda number: SetProject(number, wanted))
    return _view(doors, project)


@delete("/v1/projects/{project:str}", operation_id="unset_project", status_code=204, responses=refusals(403, 404, 503))
async def unset_project(request: Request[Any, Any, Any], project: FromPath[str]) -> None:
    """Forget the settings of a project: weight 1 and no quota. Its workloads stay."""
    await ask(request, lambda number: Unset(number, "project", project))


def _view(doors: Doors, project: str) -> ProjectView:
    state = doors.engine.state
    return project_view(state, project, doors.census.of(state).projects.get(project, 0), totals_of(state.fleet))
