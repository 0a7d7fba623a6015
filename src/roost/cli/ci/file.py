"""From a pipeline file to jobs on a server: read, checked here, submitted in one request, retried one by one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from roost.cli.ci.runs import PipelineRun, elements_of
from roost.cli.ci.stages import Stage
from roost.cli.common.array_file import with_action_values
from roost.cli.common.exit_codes import USAGE, Failure, exit_code_of, on_lines
from roost.cli.work.apply import read_file, split_path
from roost.client import Client
from roost.client.errors import ApiError
from roost.model.errors import Invalid
from roost.model.limits import DEFAULT_PROJECT
from roost.model.spec.pipeline import Action, Pipeline, chosen, document_of, read_pipeline
from roost.model.spec.problems import Problems

EXAMPLE_RUN = "000000"  # ID of the run if a file is only checked


class Jobs(NamedTuple):
    """A pipeline whose jobs are ready to be submitted."""

    file: str
    pipeline: Pipeline
    run: str
    documents: list[dict[str, Any]]

    def submit(self, client: Client) -> tuple[PipelineRun, int]:
        """Submit all of them, or none. The run, and a revision from before it."""
        pipeline = self.pipeline
        since = client.workloads.page(pipeline.project, self.documents[0]["name"]).revision
        try:
            made = client.workloads.submit_batch(self.documents)
        except ApiError as error:
            message = on_lines(f"{self.file}: {self._with_place(*item)}" for item in error.errors)
            raise Failure(message, error.hint, exit_code_of(error)) from None
        return PipelineRun(pipeline.project, pipeline.name, self.run, list(made)), since

    def _with_place(self, path: str, message: str) -> str:
        if not path:
            return message
        number, field = split_path(path, len(self.pipeline.actions))
        field = field.replace("after", "needs", 1)  # as it is called in the file
        return f"{self.pipeline.actions[number].path}{'.' if field else ''}{field}: {message}"


def read_jobs(
    file: str, run: str, variables: Mapping[str, str], only: Sequence[str], retention: str, project: str
) -> Jobs:
    pipeline = read_checked(file, only, variables, retention, project)
    documents = [document_of(pipeline, action, run, variables, retention) for action in pipeline.actions]
    return Jobs(file, pipeline, run, documents)


def read_checked(
    file: str, only: Sequence[str], variables: Mapping[str, str] | None = None, retention: str = "", project: str = ""
) -> Pipeline:
    """The pipeline of a file that a server would accept, as far as a client can check."""
    found = list(read_file(file))
    if not found:
        raise Failure(f"{file}: there is nothing in it", exit_code=USAGE)
    if len(found) > 1:
        raise Failure(f"{file}: a file holds one pipeline; this one has {len(found)} documents", exit_code=USAGE)
    raw = with_action_values(found[0][1], file, Path(file).parent)
    if isinstance(raw, dict) and project:
        raw = {"project": project, **raw}
    try:
        pipeline = chosen(read_pipeline(raw), only)
        problems = Problems()
        for action in pipeline.actions:
            problems.check(document_of, pipeline, action, EXAMPLE_RUN, variables or {}, retention)
        problems.refuse()
    except Invalid as error:
        raise Failure(on_lines(f"{file}: {item}" for item in error.every), exit_code=USAGE) from None
    return pipeline


def retry_run(client: Client, run: PipelineRun) -> tuple[list[Stage], int, int]:
    """Retry all actions that did not succeed, dependencies first. Stages, the revision before, number of retries."""
    since = client.workloads.page(run.project, run.workloads[0].name).revision
    existing = [client.workloads.get(workload.project, workload.name) for workload in run.workloads]
    stages = [Stage(workload, workload.document, elements_of(client, workload)) for workload in existing]
    again = 0
    for stage in stages:
        if stage.workload.is_over and stage.workload.state != "succeeded":
            retried = client.workloads.retry(stage.workload.project, stage.workload.name)
            stage.workload, stage.reported = retried, retried.is_over
            again += 1
    return stages, since, again


def tree(pipeline: Pipeline) -> list[str]:
    """The actions in order, each below the last one that it needs: that is when it can run."""
    below: dict[str, list[Action]] = {}
    places = {action.name: number for number, action in enumerate(pipeline.actions)}
    for action in pipeline.actions:
        last = max((need.action for need in action.needs), key=lambda name: places[name], default="")
        below.setdefault(last, []).append(action)
    where = "" if pipeline.project == DEFAULT_PROJECT else f" of project {pipeline.project}"
    lines = [(f"{pipeline.name}{where}", "")]
    stack = [("", action, action is below[""][-1]) for action in reversed(below.get("", []))]
    while stack:
        indent, action, is_last = stack.pop()
        lines.append((f"{indent}{'└── ' if is_last else '├── '}{action.name}", _about(action)))
        inner = below.get(action.name, [])
        deeper = indent + ("    " if is_last else "│   ")
        stack += [(deeper, item, item is inner[-1]) for item in reversed(inner)]
    width = max(len(name) for name, _ in lines)
    return [f"{name.ljust(width)}  {about}".rstrip() for name, about in lines]


def _about(action: Action) -> str:
    fields = action.fields
    steps = len(fields["steps"])
    elements = len(fields["each"]) if "each" in fields else fields.get("count", 1)
    needs = [need.action if need.when == "succeeded" else f"{need.action} ({need.when})" for need in action.needs]
    arguments = [
        str(fields["image"]) if fields.get("image") else "process",
        f"{steps} step{'s' if steps > 1 else ''}",
        f"{elements} elements" if elements != 1 else "",
        f"after {' and '.join(needs)}" if needs else "",
    ]
    return ", ".join(filter(None, arguments))
