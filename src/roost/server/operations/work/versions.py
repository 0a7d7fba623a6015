"""Versions: what a workload was, and the ways on and back of a change."""

from typing import Annotated

from msgspec import Meta

from roost.model.events import Promote, Rollback
from roost.schema.rollouts import Back, VersionPage
from roost.schema.work import WorkloadView
from roost.server.operations.as_of import AsOf, state_at
from roost.server.operations.context import Call
from roost.server.operations.parameters import At
from roost.server.operations.work.workloads import change_workload
from roost.server.views.rollouts import asked_for, difference, found, version_views

EACH = "each"

Diff = Annotated[str, Meta(max_length=30, description="`A..B`: what differs between two; `each`: of each.")]


async def list_versions(call: Call, project: str, name: str, diff: Diff = "", at: At = "") -> AsOf[VersionPage]:
    """List the versions of a workload: documents and differences."""
    seen = await state_at(call, at)
    workload, redactor = seen.workload(project, name), call.redactor
    lines: list[str] = []
    if diff and diff != EACH:
        old, new = (found(seen.state, workload, number) for number in asked_for(diff))
        lines = difference(old, new)
    items = list(version_views(seen.state, workload, compared=diff == EACH, visible=redactor.visible))
    return seen.shows(VersionPage(seen.state.revision, items, lines))


async def promote(call: Call, project: str, name: str) -> WorkloadView:
    """Promote the canaries of a rollout."""
    key = f"{project}/{name}"
    return await change_workload(call, key, lambda number: Promote(number, key))


async def rollback(call: Call, project: str, name: str, fields: Back) -> WorkloadView:
    """Roll back to an earlier version, which becomes a new one. Instances that still run it stay."""
    key = f"{project}/{name}"
    return await change_workload(call, key, lambda number: Rollback(number, key, fields.version or 0))
