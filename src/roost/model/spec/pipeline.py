"""A pipeline: actions that need each other, written in one file. Each becomes a job that comes after those it needs.

Pure: a file as plain data in, workload documents out, or an error that names the place in the file. The job of an
action is called PIPELINE-RUN-ACTION, so that two runs of one pipeline never meet.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.spec.names import check_name
from roost.model.spec.placement import between
from roost.model.spec.problems import Problems, all_of, check_each, indexed
from roost.model.spec.reading import NO_SUCH_FIELD, did_you_mean
from roost.model.spec.submission import spec_of_document

ACTIONS_MAX = 1_000  # one request, one commit, one table to read; more of the same is one action with `each`
RUN_LENGTH_MAX = 16  # of the part of a job's name that tells runs apart: it leaves 46 characters for the two others
RETENTION_MS_MIN = 60_000  # of a finished action: clients must be able to read its result
WHEN = ("succeeded", "finished", "started")
PIPELINE, RUN, ACTION = "pipeline", "run", "action"  # the labels of an action's job
OWN_LABELS = (PIPELINE, RUN, ACTION)
FIELDS = ("name", "project", "env", "actions")
ACTION_FIELDS = (
    "name", "needs", "image", "steps", "env", "labels", "ports", "resources", "count", "each", "priority", "retries",
    "timeout", "queue_timeout", "deadline", "expected", "grace", "when_full", "when_lost", "preemptible", "fenced",
    "placement", "retention",
)  # fmt: skip
ELSEWHERE = {  # what a workload document has and an action has not, and what to do about it
    "command": "an action has steps; write `steps: [COMMAND]`",
    "after": "an action says with `needs` what comes first",
    "project": "the project is that of the pipeline and stands at the top of the file",
    "kind": "every action is a job",
    "schedule": "a pipeline runs when it is asked to: let a scheduled job call `roost ci run`",
    "stderr": "the output of an action is one log, in the order of writing",
}


class Need(NamedTuple):
    action: str
    when: str
    path: str


class Action(NamedTuple):
    number: int
    name: str
    needs: tuple[Need, ...]
    fields: dict[str, Any]

    @property
    def path(self) -> str:
        return f"actions[{self.number}]"


class Pipeline(NamedTuple):
    """A file that was read: actions in the order in which they can run, else as they are written."""

    name: str
    project: str
    env: dict[str, Any]
    actions: tuple[Action, ...]


def read_pipeline(raw: object) -> Pipeline:
    fields = _mapping(raw, "", "a pipeline is a mapping with a name and actions")
    problems = Problems()
    check = problems.check
    check(_check_fields, fields, "", FIELDS, "a pipeline")
    # The fields that it shares with a job are checked as those of a job.
    shared = {"steps": ["true"], **{field: fields[field] for field in FIELDS[:-1] if field in fields}}
    check(spec_of_document, shared)
    actions = check(_actions, fields)
    problems.refuse()
    project = fields.get("project", limits.DEFAULT_PROJECT)
    return Pipeline(fields["name"], project, fields.get("env", {}), tuple(_in_order(actions)))


def chosen(pipeline: Pipeline, only: Sequence[str]) -> Pipeline:
    """The pipeline with these actions and their dependencies; without names, all of them."""
    if not only:
        return pipeline
    by_name = {action.name: action for action in pipeline.actions}
    for name in only:
        if name not in by_name:
            raise Invalid("actions", f"there is no action {name!r:.60}; there are {', '.join(list(by_name)[:20])}")
    wanted = dict.fromkeys(only)
    for name in (waiting := list(only)):
        for need in by_name[name].needs:
            if need.action not in wanted:
                wanted[need.action] = None
                waiting.append(need.action)
    return pipeline._replace(actions=tuple(action for action in pipeline.actions if action.name in wanted))


def document_of(
    pipeline: Pipeline, action: Action, run: str, variables: Mapping[str, str], retention: str = ""
) -> dict[str, Any]:
    """The job of one action, checked as the server will check it."""
    document: dict[str, Any] = {
        **action.fields,
        "name": job_name(pipeline, action, run),
        "project": pipeline.project,
        "env": {**pipeline.env, **action.fields.get("env", {}), **variables},
        "labels": {**action.fields.get("labels", {}), PIPELINE: pipeline.name, RUN: run, ACTION: action.name},
    }
    if retention and "retention" not in document:
        document["retention"] = retention
    if action.needs:
        others = [(f"{pipeline.name}-{run}-{need.action}", need.when) for need in action.needs]
        document["after"] = [name if when == WHEN[0] else {"workload": name, "when": when} for name, when in others]
    if spec_of_document(document, action.path).policy.retention_ms < RETENTION_MS_MIN:
        raise Invalid(f"{action.path}.retention", "at least 1m is required, so that clients can read the result")
    return document


def job_name(pipeline: Pipeline, action: Action, run: str) -> str:
    """PIPELINE-RUN-ACTION."""
    name = f"{pipeline.name}-{run}-{action.name}"
    if not (run.isascii() and run.isalnum() and len(run) <= RUN_LENGTH_MAX):
        raise Invalid("run", f"a run is 1 to {RUN_LENGTH_MAX} letters and digits, not {run!r:.60}")
    if len(name) > limits.NAME_LENGTH_MAX:
        message = f"its job would be called {name} and have {len(name)} characters, at most {limits.NAME_LENGTH_MAX}"
        raise Invalid(f"{action.path}.name", f"{message}; shorten this name or that of the pipeline")
    return name


def _actions(fields: Mapping[str, Any]) -> list[Action]:
    listed = fields.get("actions")
    if not isinstance(listed, list) or not listed:
        raise Invalid("actions", "a pipeline needs a list of actions, each with a name and steps")
    if len(listed) > ACTIONS_MAX:
        message = f"a pipeline may have {ACTIONS_MAX:,} actions; this one has {len(listed):,}"
        raise Invalid("actions", f"{message}. More of the same are one action with `each` or `count`")
    actions = check_each(_action, indexed(listed, "actions"))
    places: dict[str, int] = {}
    for action in actions:
        if action.name in places:
            message = f"two actions are called {action.name}; the other one is actions[{places[action.name]}]"
            raise Invalid(f"{action.path}.name", message)
        places[action.name] = action.number
    for action in actions:
        for need in action.needs:
            if need.action == action.name:
                raise Invalid(need.path, f"{action.name} cannot need itself")
            if need.action not in places:
                existing = ", ".join(list(places)[:20])
                raise Invalid(need.path, f"there is no action {need.action!r:.60}; there are {existing}")
    return actions


def _action(raw: object, path: str) -> Action:
    fields = dict(_mapping(raw, path, "an action is a mapping with a name and steps"))
    problems = Problems()
    check = problems.check
    check(_check_fields, fields, path, ACTION_FIELDS, "an action")
    check(_check_name, fields, f"{path}.name")
    needs = check(_needs, fields.pop("needs", []), f"{path}.needs")
    if fields.get("steps") is None:
        problems.found.append(Invalid(f"{path}.steps", "an action needs steps: lines for the shell, in order"))
    for field, example in (("env", '{CI: "1"}'), ("labels", "{team: web}")):
        check(_mapping, fields.get(field, {}), f"{path}.{field}", f"this is a mapping, such as {example}")
    check(_check_labels, fields.get("labels", {}), f"{path}.labels")
    problems.refuse()
    return Action(int(path.removeprefix("actions[").rstrip("]")), fields["name"], needs, fields)


def _check_fields(fields: Mapping[str, Any], path: str, known: Sequence[str], noun: str) -> None:
    wrong: list[Invalid] = []
    for key in fields:
        if key not in known:
            message = NO_SUCH_FIELD + (did_you_mean(key, known) or f"; {noun} has {', '.join(known)}")
            here = f"{path}.{key:.60}" if path else f"{key:.60}"
            wrong.append(Invalid(here, ELSEWHERE.get(key, message) if path else message))
    if wrong:
        raise all_of(wrong)


def _check_name(fields: Mapping[str, Any], path: str) -> None:
    name = fields.get("name")
    if not isinstance(name, str):
        raise Invalid(path, "an action needs a name" if name is None else f"a name is a text, not {name!r:.60}")
    check_name(name, path)


def _check_labels(labels: Mapping[str, Any], path: str) -> None:
    for label in OWN_LABELS:
        if label in labels:
            raise Invalid(f"{path}.{label}", "every action gets this label; take another name for yours")


def _needs(raw: object, path: str) -> tuple[Need, ...]:
    """`build`, `[build, lint]`, `[build, {lint: finished}]` or `{build: finished}`."""
    if isinstance(raw, str | Mapping):
        needs = _needs_of(raw, path)
    elif isinstance(raw, list):
        needs = [need for number, item in enumerate(raw) for need in _needs_of(item, f"{path}[{number}]")]
    else:
        raise Invalid(path, "this is a list of actions, such as [build], or a mapping such as {build: finished}")
    between(len(needs), 0, limits.AFTER_MAX, path, "actions")
    seen: set[str] = set()
    for need in needs:
        if need.action in seen:
            raise Invalid(need.path, f"{need.action:.60} is named twice")
        seen.add(need.action)
    return tuple(needs)


def _needs_of(raw: object, path: str) -> list[Need]:
    if isinstance(raw, str):
        return [Need(raw, WHEN[0], path)]
    if not isinstance(raw, Mapping):
        raise Invalid(path, "this is the name of an action, or a mapping such as {build: finished}")
    for name, when in raw.items():
        if not isinstance(name, str):
            raise Invalid(path, f"the name of an action is a text, not {name!r:.60}")
        if when not in WHEN:
            raise Invalid(f"{path}.{name:.60}", f"this is {', '.join(WHEN[:-1])} or {WHEN[-1]}, not {when!r:.60}")
    return [Need(name, when, f"{path}.{name:.60}") for name, when in raw.items()]


def _in_order(actions: Sequence[Action]) -> list[Action]:
    waiting = {action.name: len(action.needs) for action in actions}
    needed_by: dict[str, list[Action]] = {action.name: [] for action in actions}
    for action in actions:
        for need in action.needs:
            needed_by[need.action].append(action)
    found = [action for action in actions if not action.needs]
    for action in found:
        for other in needed_by[action.name]:
            waiting[other.name] -= 1
            if not waiting[other.name]:
                found.append(other)
    if len(found) < len(actions):
        raise _circle([action for action in actions if waiting[action.name]])
    return found


def _circle(stuck: Sequence[Action]) -> Invalid:
    """The cycle that is met from the first action that can never run. Each of these needs another of them."""
    by_name = {action.name: action for action in stuck}
    action, steps = stuck[0], dict[str, Need]()
    while action.name not in steps:
        need = next(need for need in action.needs if need.action in by_name)
        steps[action.name] = need
        action = by_name[need.action]
    names = list(steps)
    chain = [*names[names.index(action.name) :], action.name]
    shown = chain if len(chain) <= 20 else [*chain[:10], "...", *chain[-9:]]
    return Invalid(steps[action.name].path, f"dependency cycle: {' needs '.join(shown)}")


def _mapping(value: object, path: str, message: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(path or "$", message)
    for key in value:
        if not isinstance(key, str):
            raise Invalid(path or "$", f"the name of a field is a text, not {key!r:.60}")
    return value
