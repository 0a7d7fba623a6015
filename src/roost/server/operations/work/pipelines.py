"""Pipelines: a file becomes a run of jobs, all of them in one commit."""

import os
from functools import partial
from typing import Any, NamedTuple

import msgspec

from roost.core.state.state import State
from roost.model.events import Submit, WorkloadSpec
from roost.model.keys import split_workload_key
from roost.model.spec.pipelines.expansion import Job, RunOptions, jobs_of, path_in_file
from roost.model.spec.problems import Problems
from roost.model.spec.reading import read
from roost.schema.pipelines.runs import ActionView, PipelineStart, StartedRun
from roost.server.operations.context import Call
from roost.server.operations.paths import renamed_paths
from roost.server.operations.permit import permit_wanted
from roost.server.operations.sharing.secrets import require_secrets
from roost.server.operations.work.documents import (
    QUICK_BYTES_MAX,
    QUICK_DOCUMENTS_MAX,
    QUICK_RULES_MAX,
    Documents,
    RuleLimit,
    count_rules,
    decoded,
    pack,
    unpacked,
)
from roost.server.operations.work.inputs import with_files
from roost.server.operations.work.workloads import submitted_view
from roost.server.views.limits import Known
from roost.server.waiting import Slices

RUN_BYTES = 3  # six hexadecimal digits: two runs of one pipeline do not meet by chance, and one that does is refused


class JobPlace(NamedTuple):
    path: str  # in the file
    action: str
    service: str
    needs: dict[str, str]


class Expanded(NamedTuple):
    """What is known of a run beside its jobs."""

    project: str
    pipeline: str
    name: str
    run: str
    jobs: tuple[JobPlace, ...]

    def path(self, path: str) -> str:
        """The place in the request that an error about a job is about."""
        found = path_in_file(path, [job.path for job in self.jobs])
        return f"pipeline.{found}" if found else ""


async def start_pipeline(call: Call, start: Documents) -> StartedRun:
    """Run a pipeline: its actions become workloads, all of them or none, in one commit."""
    expanded, wanted = await _read(call, start, os.urandom(RUN_BYTES).hex())
    with renamed_paths(lambda path: f"pipeline.{path}"):
        permit_wanted(call.principal, wanted)
    with renamed_paths(expanded.path):
        await require_secrets(call, wanted, many=True)
        since = (await call.state()).revision
        async with with_files(call, wanted, many=True) as whole:
            submitted = await call.ask(lambda number: Submit(number, whole))
    slices, known = Slices(), Known()
    actions: list[ActionView] = []
    for item, job in zip(submitted, expanded.jobs, strict=True):
        if job.service:
            actions[-1].services[job.service] = split_workload_key(item.key)[1]
        else:
            actions.append(ActionView(job.action, job.needs, {}, submitted_view(call, item, known)))
        await slices.pause()
    return StartedRun(
        expanded.project, expanded.pipeline, expanded.run, f"{expanded.name}-{expanded.run}", since, actions
    )


async def _read(call: Call, start: Documents, run: str) -> tuple[Expanded, tuple[WorkloadSpec, ...]]:
    """The jobs of a run. A large file is read beside the loop."""
    if len(start.text) <= QUICK_BYTES_MAX:
        body = _body(start)
        actions = _list_of(body.pipeline, "actions")
        listed = [*actions, *(service for action in actions for service in _list_of(action, "services"))]
        if len(listed) <= QUICK_DOCUMENTS_MAX and sum(map(count_rules, listed)) <= QUICK_RULES_MAX:
            expanded, jobs = _expanded(body, run)
            return expanded, tuple(job.spec for job in jobs)
    head, *pieces = await call.context.reading.ask(partial(_packed, start, run), call.principal.name)
    return msgspec.msgpack.decode(head, type=Expanded), await unpacked(pieces)


def _list_of(raw: object, field: str) -> list[Any]:
    """A field that may be a list, before that is checked."""
    found = raw.get(field) if isinstance(raw, dict) else None
    return found if isinstance(found, list) else []


def _packed(start: Documents, run: str, _: State) -> list[bytes]:
    expanded, jobs = _expanded(_body(start), run)
    return [msgspec.msgpack.encode(expanded), *pack([job.spec for job in jobs])]


def _body(start: Documents) -> PipelineStart:
    (raw,) = decoded(start, is_list=False)
    return read(raw, PipelineStart)


def _expanded(body: PipelineStart, run: str) -> tuple[Expanded, list[Job]]:
    options = RunOptions(body.variables, body.only, body.retention)
    with renamed_paths(lambda path: path if path == "run" else "pipeline" if path == "$" else f"pipeline.{path}"):
        pipeline, jobs = jobs_of(body.pipeline, body.run or run, options)
        problems, rules = Problems(), RuleLimit()
        for job in jobs:
            problems.check(rules.add, job.spec, f"{job.path}.placement")
        problems.refuse()
    places = tuple(JobPlace(job.path, job.action.title, job.service, job.needs) for job in jobs)
    return Expanded(pipeline.project, pipeline.title, pipeline.name, body.run or run, places), jobs
