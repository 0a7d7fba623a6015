"""From a pipeline file to a run: read, checked here, started in one request; its actions are retried one by one."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from roost.cli.ci.runs import PipelineRun, elements_of
from roost.cli.ci.stages import GOOD, Stage, needs_of
from roost.cli.common.array_file import with_action_values
from roost.cli.common.exit_codes import USAGE, Failure, exit_code_of, on_lines
from roost.cli.common.sending import checked_inputs, send_inputs
from roost.cli.work.apply import read_file
from roost.client import Client
from roost.client.errors import ApiError
from roost.client.files.inputs import has_local_inputs
from roost.model.errors import Invalid
from roost.model.limits import DEFAULT_PROJECT
from roost.model.spec.pipelines.actions import Action, Pipeline
from roost.model.spec.pipelines.expansion import RunOptions, jobs_of

STDIN = "-"
EXAMPLE_RUN = "000000"  # ID of the run if a file is only checked


class PipelineFile(NamedTuple):
    """A pipeline that a server would accept, as far as a client can check."""

    file: str
    raw: dict[str, Any]
    pipeline: Pipeline
    options: RunOptions
    tree: str = ""  # a folder of this machine that is sent without being asked for

    def sent(self, client: Client) -> "PipelineFile":
        """The same, after its inputs from this machine were sent."""
        ((_, raw),) = send_inputs(client, [(self.file, self.raw)])
        return self._replace(raw=raw)

    def start(self, client: Client) -> tuple[PipelineRun, list[Stage], int]:
        """Start all actions, or none. The run, its stages, and a revision from before it."""
        options = self.options
        try:
            made = client.workloads.start_pipeline(
                self.raw, variables=options.variables, only=options.only, retention=options.retention
            )
        except ApiError as error:
            items = [(path.removeprefix("pipeline").lstrip("."), message) for path, message in error.errors]
            message = on_lines(f"{self.file}: {path}{': ' if path else ''}{message}" for path, message in items)
            raise Failure(message, error.hint, exit_code_of(error)) from None
        run = PipelineRun(made.project, made.pipeline, made.run, [item.workload for item in made.actions])
        stages = [Stage(item.workload, item.needs) for item in made.actions]
        for stage in stages:
            stage.reported = False  # one that was skipped at once is also reported
        return run, stages, made.since


def read_pipeline_file(
    file: str, options: RunOptions, project: str = "", workdir: str = "", *, send: bool = False
) -> PipelineFile:
    """`workdir`: a directory whose content all actions start with. `send`: else that of the file, if there is one."""
    found = list(read_file(file))
    if not found:
        raise Failure(f"{file}: there is nothing in it", exit_code=USAGE)
    if len(found) > 1:
        raise Failure(f"{file}: a file holds one pipeline; this one has {len(found)} documents", exit_code=USAGE)
    raw = with_action_values(found[0][1], file, Path(file).parent)
    if isinstance(raw, dict) and project:
        raw = {"project": project, **raw}
    tree = _tree_of(file, raw) if send and not workdir else ""
    if isinstance(raw, dict) and (workdir or tree):
        given = raw.get("inputs", [])
        sent = {"from": os.path.abspath(workdir or tree)}
        raw = {**raw, "inputs": [sent, *(given if isinstance(given, list) else [given])]}
    try:
        pipeline, _ = jobs_of(checked_inputs(raw, file), EXAMPLE_RUN, options)
    except Invalid as error:
        raise Failure(on_lines(f"{file}: {item}" for item in error.every), exit_code=USAGE) from None
    return PipelineFile(file, raw, pipeline, options, tree)


def _tree_of(file: str, raw: Any) -> str:
    """The working tree that actions most likely need: the folder of the file, or the one above a hidden folder.

    None if the file says itself which files are sent, or if that would be a home directory.
    """
    if file == STDIN or not isinstance(raw, dict) or "inputs" in raw or has_local_inputs(raw):
        return ""
    folder = Path(os.path.abspath(file)).parent
    if folder.name.startswith("."):
        folder = folder.parent
    return "" if folder in (Path(folder.anchor), Path.home()) else str(folder)


def retry_run(client: Client, run: PipelineRun) -> tuple[list[Stage], int, int]:
    """Retry all actions that did not succeed, dependencies first. Stages, the revision before, number of retries.

    Skipped ones are decided again if any other action is: their conditions may be about it.
    """
    since = client.workloads.page(run.project, run.workloads[0].name).revision
    existing = [client.workloads.get(workload.project, workload.name) for workload in run.workloads]
    stages = [Stage(workload, needs_of(workload.document), elements_of(client, workload)) for workload in existing]
    again = 0
    is_bad = any(stage.workload.is_over and stage.workload.state not in GOOD for stage in stages)
    for stage in stages if is_bad else ():
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
    lines = [(f"{pipeline.title}{where}", "")]
    stack = [("", action, action is below[""][-1]) for action in reversed(below.get("", []))]
    while stack:
        indent, action, is_last = stack.pop()
        lines.append((f"{indent}{'└── ' if is_last else '├── '}{action.title}", _about(action)))
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
        f"{len(action.services)} service{'s' * (len(action.services) > 1)}" if action.services else "",
        f"after {' and '.join(needs)}" if needs else "",
    ]
    return ", ".join(filter(None, arguments))
