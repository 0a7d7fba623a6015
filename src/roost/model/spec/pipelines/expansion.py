"""The jobs of a pipeline's run: one document per action, each after those it needs.

The job of an action is called PIPELINE-RUN-ACTION, so that two runs of one pipeline never meet.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.events import WorkloadSpec
from roost.model.spec.names import check_text
from roost.model.spec.pipelines.actions import Action, ActionService, Pipeline, chosen
from roost.model.spec.pipelines.artifacts import artifact_inputs
from roost.model.spec.pipelines.definition import WHEN, read_pipeline
from roost.model.spec.pipelines.labels import ACTION, OWN_LABELS, PIPELINE, RUN, SERVICE, job_name, name_of
from roost.model.spec.problems import Problems
from roost.model.spec.submission import spec_of_document
from roost.model.states import Milestone

RUN_LENGTH_MAX = 16  # of the part of a job's name that tells runs apart: it leaves 46 characters for the two others
RETENTION_MS_MIN = 60_000  # of a finished action: clients must be able to read its result
_POSITION = re.compile(r"\[(\d+)\]\.?")


class RunOptions(NamedTuple):
    """What is given with a file: variables of all actions, which actions, and how long its records are kept."""

    variables: Mapping[str, str] = {}
    only: Sequence[str] = ()
    retention: str = ""


class Job(NamedTuple):
    """The workload of an action, or of one of its services."""

    action: Action
    path: str
    document: dict[str, Any]
    spec: WorkloadSpec
    service: str = ""  # its title

    @property
    def needs(self) -> dict[str, str]:
        """The names of the jobs that an action needs, and how far they must have come."""
        prefix = self.spec.name.removesuffix(self.action.name)
        return {f"{prefix}{need.action}": need.when for need in self.action.needs}


def jobs_of(raw: object, run: str, options: RunOptions) -> tuple[Pipeline, list[Job]]:
    """The pipeline, and its jobs, each after those it needs, and its services, each after the job of its action.

    Raises everything that is wrong with the file.
    """
    pipeline = chosen(read_pipeline(raw), options.only)
    if not (run.isascii() and run.isalnum() and len(run) <= RUN_LENGTH_MAX):
        raise Invalid("run", f"a run is 1 to {RUN_LENGTH_MAX} letters and digits, not {run!r:.60}")
    problems = Problems()
    group = _group(pipeline, options)
    actions = {action.name: action for action in pipeline.actions}
    jobs: list[Job] = []
    for action in pipeline.actions:
        job = problems.check(_job, pipeline, action, run, options, group, actions)
        jobs.append(job)
        for service in action.services if job is not None else ():
            jobs.append(problems.check(_service, pipeline, job, service, options))
    problems.refuse()
    return pipeline, jobs


def _group(pipeline: Pipeline, options: RunOptions) -> str:
    """The group of a run: its name, and the values of the variables that tell groups apart; empty: it has none."""
    if pipeline.concurrency is None:
        return ""
    group = pipeline.concurrency.group
    for name in pipeline.concurrency.by:
        value = {**pipeline.env, **options.variables}.get(name)
        if not isinstance(value, str):
            message = f"there is no variable {name!r:.60}; write it in `env`, or give it with the run"
            raise Invalid("concurrency.by", message)
        group += f" {name}={value}"
    check_text(group, "concurrency")
    return group


def path_in_file(path: str, places: Sequence[str]) -> str:
    """The place in the file that an error about the jobs of a run is about: `[2].after[0]` is `actions[0].needs[0]`."""
    found = _POSITION.match(path)
    number, field = (int(found[1]), path[found.end() :]) if found else (0, path)
    if not path or number >= len(places):
        return path
    here = places[number]
    field = re.sub("^after", "needs", field)
    return f"{here}.{field}" if field and field != "$" else here


def _job(
    pipeline: Pipeline, action: Action, run: str, options: RunOptions, group: str, actions: Mapping[str, Action]
) -> Job:
    name = job_name(pipeline.title, run, action.title)
    if len(name) > limits.NAME_LENGTH_MAX:
        message = f"its job would be called {name} and have {len(name)} characters, at most {limits.NAME_LENGTH_MAX}"
        raise Invalid(f"{action.path}.name", f"{message}; shorten this name or that of the pipeline")
    document: dict[str, Any] = {
        **action.fields,
        "name": name,
        "project": pipeline.project,
        "env": {**pipeline.env, **action.fields.get("env", {}), **options.variables},
        "labels": {**action.fields.get("labels", {}), PIPELINE: pipeline.title, RUN: run, ACTION: action.title},
    }
    if options.retention and "retention" not in document:
        document["retention"] = options.retention
    if group:
        document["concurrency"] = {"group": group, "cancel": True}
    others = [(f"{pipeline.name}-{run}-{need.action}", need.when) for need in action.needs]
    others += [(_service_name(name, service), Milestone.STARTED) for service in action.services]
    if others:
        document["after"] = [name if when == WHEN[0] else {"workload": name, "when": when} for name, when in others]
    if isinstance(action.fields.get("inputs", []), list):
        own = [*_artifacts(action, actions), *action.fields.get("inputs", [])]
        inputs = [*pipeline.inputs, *[_input(item, f"{pipeline.name}-{run}-") for item in own]]
        document |= {"inputs": inputs} if inputs else {}
    if action.artifacts.outputs and isinstance(action.fields.get("outputs", []), list):
        document["outputs"] = [*action.fields.get("outputs", []), *action.artifacts.documents]
    spec = spec_of_document(document, action.path)
    if spec.policy.retention_ms < RETENTION_MS_MIN:
        raise Invalid(f"{action.path}.retention", "at least 1m is required, so that clients can read the result")
    return Job(action, action.path, document, spec)


def _artifacts(action: Action, actions: Mapping[str, Action]) -> Iterator[dict[str, Any]]:
    """The artifacts that an action gets: of all it needs or chooses, unless its inputs name their action."""
    own = {name_of(str(item.get("workload", ""))) for item in action.fields.get("inputs", []) if isinstance(item, dict)}
    for need in action.needs:
        other = actions[need.action]
        is_chosen = action.artifacts.sources is None or other.name in action.artifacts.sources
        if is_chosen and other.artifacts.outputs and need.when != Milestone.STARTED and other.name not in own:
            has_outputs = bool(other.fields.get("outputs"))
            yield from artifact_inputs(other.name, other.artifacts, has_outputs=has_outputs, is_array=other.is_array)


def _service(pipeline: Pipeline, job: Job, service: ActionService, options: RunOptions) -> Job:
    """A service that starts when the needs of its action are over, and ends with it."""
    needs = job.document.get("after", [])[: len(job.action.needs)]  # the rest are the services
    document = {
        **service.fields,
        "kind": "service",
        "name": _service_name(job.spec.name, service),
        "project": pipeline.project,
        "env": {**pipeline.env, **service.fields.get("env", {}), **options.variables},
        "labels": {**{label: job.document["labels"][label] for label in OWN_LABELS}, SERVICE: service.title},
        "until": job.spec.name,
        "after": needs,
        **({"retention": job.document["retention"]} if "retention" in job.document else {}),
    }
    return Job(job.action, service.path, document, spec_of_document(document, service.path), service.title)


def _service_name(job: str, service: ActionService) -> str:
    name = f"{job}-{name_of(service.title)}"
    if len(name) > limits.NAME_LENGTH_MAX:
        message = f"it would be called {name} and have {len(name)} characters, at most {limits.NAME_LENGTH_MAX}"
        raise Invalid(f"{service.path}.name", f"{message}; shorten this name")
    return name


def _input(item: Any, prefix: str) -> Any:
    """An input that names an action gets the name of its job; what is wrong with others is found in the document."""
    title = item.get("workload") if isinstance(item, dict) else None
    return {**item, "workload": prefix + name_of(title)} if isinstance(title, str) and title else item
