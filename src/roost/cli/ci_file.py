"""From a pipeline file to jobs on a server: read, checked here, submitted in one request, retried one by one."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.cli.apply import read_file
from roost.cli.ci_runs import Run, elements_of
from roost.cli.ci_stages import Stage
from roost.cli.each_file import directory_of, with_action_values
from roost.cli.outcome import USAGE, Failure, exit_code_of
from roost.client.errors import ApiError
from roost.model.errors import Invalid
from roost.model.limits import DEFAULT_PROJECT
from roost.model.pipeline import Action, Pipeline, chosen, document_of, read_pipeline

if TYPE_CHECKING:
    from roost.client import Client

EXAMPLE_RUN = "000000"  # stands for the run where a file is only checked


class Jobs(NamedTuple):
    """A pipeline whose jobs are ready to be submitted."""

    file: str
    pipeline: Pipeline
    run: str
    documents: list[dict[str, Any]]

    def submit(self, client: "Client") -> tuple[Run, int]:
        """Submit all of them, or none. The run, and a revision from before it."""
        pipeline = self.pipeline
        since = client.page(pipeline.project, self.documents[0]["name"]).revision
        try:
            made = client.submit_batch(self.documents)
        except ApiError as error:
            where = _place_in_file(error.path, pipeline.actions)
            raise Failure(f"{self.file}: {where}{error.message}", error.hint, exit_code_of(error)) from None
        return Run(pipeline.project, pipeline.name, self.run, made), since


def read_jobs(file: str, run: str, variables: Mapping[str, str], only: Sequence[str], keep: str, project: str) -> Jobs:
    """The jobs of a file. What is wrong with it is told with its place in it."""
    pipeline = read_checked(file, only, variables, keep, project)
    return Jobs(file, pipeline, run, [document_of(pipeline, each, run, variables, keep) for each in pipeline.actions])


def read_checked(
    file: str, only: Sequence[str] = (), variables: Mapping[str, str] | None = None, keep: str = "", project: str = ""
) -> Pipeline:
    """A file that a server would take, as far as can be said without one."""
    found = list(read_file(file))
    if len(found) != 1:
        words = f"a file holds one pipeline; this one has {len(found)} documents" if found else "there is nothing in it"
        raise Failure(f"{file}: {words}", exit_code=USAGE)
    raw = with_action_values(found[0][1], file, directory_of(file))
    if isinstance(raw, dict) and project:
        raw = {"project": project, **raw}
    try:
        pipeline = chosen(read_pipeline(raw), only)
        for action in pipeline.actions:
            document_of(pipeline, action, EXAMPLE_RUN, variables or {}, keep)
    except Invalid as error:
        raise Failure(f"{file}: {error}", exit_code=USAGE) from None
    return pipeline


def retry_run(client: "Client", run: Run) -> tuple[list[Stage], int, int]:
    """Ask for another attempt of what did not succeed, who is needed first. Stages, the revision before, how many."""
    since = client.page(run.project, run.workloads[0].name).revision
    known = [client.workload(each.project, each.name) for each in run.workloads]
    stages = [Stage(each, each.document, elements_of(client, each)) for each in known]
    again = 0
    for stage in stages:
        if stage.workload.is_over and stage.workload.state != "succeeded":
            retried = client.retry(stage.workload.project, stage.workload.name)
            stage.workload, stage.told = retried, retried.is_over
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
        stack += [(deeper, each, each is inner[-1]) for each in reversed(inner)]
    width = max(len(name) for name, _ in lines)
    return [f"{name.ljust(width)}  {about}".rstrip() for name, about in lines]


def _about(action: Action) -> str:
    """In a few words: what it runs in, how much, and after what."""
    fields = action.fields
    steps = len(fields["steps"])
    elements = len(fields["each"]) if "each" in fields else fields.get("count", 1)
    words = [
        str(fields["image"]) if fields.get("image") else "process",
        f"{steps} step{'s' if steps > 1 else ''}",
        f"{elements} elements" if elements != 1 else "",
        "after " + " and ".join(_need(need.action, need.when) for need in action.needs) if action.needs else "",
    ]
    return ", ".join(filter(None, words))


def _need(action: str, when: str) -> str:
    return action if when == "succeeded" else f"{action} ({when})"


def _place_in_file(path: str, actions: Sequence[Action]) -> str:
    """Where in the file the field is that the server speaks of: [2].env.A is of the third job submitted."""
    if not path:
        return ""
    number, field = 0, path
    if path.startswith("["):
        head, _, field = path[1:].partition("]")
        number = int(head) if head.isdigit() and int(head) < len(actions) else 0
    field = field.lstrip(".").replace("after", "needs", 1)
    return f"{actions[number].path}{'.' if field else ''}{field}: "
