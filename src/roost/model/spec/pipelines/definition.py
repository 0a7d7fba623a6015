"""A pipeline as it is written: plain data in, its actions out, or an error that names the place in the file."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.spec.names import check_text
from roost.model.spec.pipelines.actions import Action, ActionService, Concurrency, Need, Pipeline, in_order
from roost.model.spec.pipelines.artifacts import Artifacts, read_artifacts
from roost.model.spec.pipelines.labels import OWN_LABELS, name_of
from roost.model.spec.placement import between
from roost.model.spec.problems import Problems, all_of, check_each, indexed
from roost.model.spec.reading import NO_SUCH_FIELD, did_you_mean, read
from roost.model.spec.rule_parser import referenced_fields
from roost.model.spec.submission import spec_of_document

SERVICES_MAX = 16  # of one action: an action may wait for 64 workloads
CONCURRENCY_VARIABLES_MAX = 8  # whose values are part of a group's name: a branch, a target, a platform
ACTIONS_MAX = 1_000  # one request, one commit, one table to read; more of the same is one action with `each`
WHEN = ("succeeded", "finished", "started")
SHARED = ("project", "env", "inputs")
FIELDS = ("name", *SHARED, "concurrency", "actions")
ACTION_FIELDS = (
    "name", "needs", "image", "container", "volumes", "isolation", "run_as", "limits",
    "steps", "env", "labels", "ports", "resources", "count", "each", "priority", "retries",
    "timeout", "queue_timeout", "deadline", "expected", "grace", "when_full", "when_lost", "preemptible", "fenced",
    "placement", "retention", "mask", "inputs", "outputs", "cache", "if", "approve",
    "artifacts", "services",
)  # fmt: skip
SERVICE_FIELDS = (
    "name", "image", "container", "volumes", "isolation", "run_as", "limits", "command", "env", "ports", "resources",
    "health", "priority", "grace", "placement",
)  # fmt: skip
ELSEWHERE = {  # what a workload document has and an action has not, and what to do about it
    "command": "an action has steps; write `steps: [COMMAND]`",
    "after": "an action says with `needs` what comes first",
    "project": "the project is that of the pipeline and stands at the top of the file",
    "kind": "every action is a job",
    "schedule": "a pipeline runs when it is asked to: let a scheduled job call `roost ci run`",
    "concurrency": "all actions of a run have one group, which stands at the top of the file",
    "stderr": "the output of an action is one log, in the order of writing",
}


class ConcurrencyFields(msgspec.Struct, forbid_unknown_fields=True):
    group: str = ""
    by: list[str] = []
    cancel: bool = False


def read_pipeline(raw: object) -> Pipeline:
    fields = _mapping(raw, "", "a pipeline is a mapping with a name and actions")
    problems = Problems()
    check = problems.check
    check(_check_fields, fields, "", FIELDS, "a pipeline")
    # The fields that it shares with a job are checked as those of a job.
    shared = {"name": "any", "steps": ["true"], **{field: fields[field] for field in SHARED if field in fields}}
    check(spec_of_document, shared)
    check(_check_title, fields, "name", "a pipeline")
    concurrency = check(_concurrency, fields)
    check(_check_shared_inputs, fields.get("inputs", []))
    actions = check(_actions, fields)
    problems.refuse()
    project, inputs = fields.get("project", limits.DEFAULT_PROJECT), tuple(fields.get("inputs", ()))
    return Pipeline(fields["name"], project, fields.get("env", {}), tuple(in_order(actions)), concurrency, inputs)


def _check_shared_inputs(inputs: object) -> None:
    for number, item in enumerate(inputs if isinstance(inputs, list) else ()):
        if isinstance(item, dict) and "workload" in item:
            raise Invalid(f"inputs[{number}].workload", "outputs of an action are inputs of single actions")


def _concurrency(fields: Mapping[str, Any]) -> Concurrency | None:
    if "concurrency" not in fields:
        return None
    block = read(fields["concurrency"], ConcurrencyFields, "concurrency")
    if not block.cancel:
        raise Invalid("concurrency.cancel", "write `cancel: true`: a newer run cancels older runs of its group")
    between(len(block.by), 0, CONCURRENCY_VARIABLES_MAX, "concurrency.by", "variables")
    return Concurrency(block.group or str(fields.get("name")), tuple(block.by))


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
            message = f"two actions have the name {action.name}; the other one is actions[{places[action.name]}]"
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
    check(_check_title, fields, f"{path}.name", "an action")
    needs = check(_needs, fields.pop("needs", []), f"{path}.needs")
    if needs is not None:
        named = {need.action for need in needs}
        needs += tuple(need for need in _input_needs(fields.get("inputs"), path) if need.action not in named)
    if fields.get("steps") is None:
        problems.found.append(Invalid(f"{path}.steps", "an action needs steps: lines for the shell, in order"))
    for field, example in (("env", '{CI: "1"}'), ("labels", "{team: web}")):
        check(_mapping, fields.get(field, {}), f"{path}.{field}", f"this is a mapping, such as {example}")
    check(_check_labels, fields.get("labels", {}), f"{path}.labels")
    awaited = {need.action: need.when for need in needs or ()}
    artifacts = check(read_artifacts, fields.pop("artifacts", []), awaited, f"{path}.artifacts") or Artifacts()
    check(_check_condition, fields.get("if", ""), needs or (), f"{path}.if")
    services = check(_services, fields.pop("services", []), f"{path}.services")
    problems.refuse()
    number = int(path.removeprefix("actions[").rstrip("]"))
    return Action(number, fields["name"], needs, fields, tuple(services), artifacts)


def _services(raw: object, path: str) -> list[ActionService]:
    if not isinstance(raw, list):
        raise Invalid(path, "this is a list of services, each with a name, a command and ports")
    between(len(raw), 0, SERVICES_MAX, path, "services")
    services = check_each(_service, indexed(raw, path))
    names: set[str] = set()
    for service in services:
        if name_of(service.title) in names:
            raise Invalid(f"{service.path}.name", f"two services have the name {name_of(service.title)}")
        names.add(name_of(service.title))
    return services


def _service(raw: object, path: str) -> ActionService:
    fields = _mapping(raw, path, "a service is a mapping with a name, a command and ports")
    _check_fields(fields, path, SERVICE_FIELDS, "a service")
    _check_title(fields, f"{path}.name", "a service")
    _mapping(fields.get("env", {}), f"{path}.env", "this is a mapping, such as {MODE: test}")
    return ActionService(fields["name"], dict(fields), path)


def _check_fields(fields: Mapping[str, Any], path: str, known: Sequence[str], noun: str) -> None:
    wrong: list[Invalid] = []
    for key in fields:
        if key not in known:
            message = NO_SUCH_FIELD + (did_you_mean(key, known) or f"; {noun} has {', '.join(known)}")
            here = f"{path}.{key:.60}" if path else f"{key:.60}"
            wrong.append(Invalid(here, ELSEWHERE.get(key, message) if noun == "an action" else message))
    if wrong:
        raise all_of(wrong)


def _check_title(fields: Mapping[str, Any], path: str, noun: str) -> None:
    title = fields.get("name")
    if not isinstance(title, str) or not title.strip():
        raise Invalid(path, f"{noun} needs a name" if not title else f"a name is a text, not {title!r:.60}")
    check_text(title, path)


def _check_labels(labels: Mapping[str, Any], path: str) -> None:
    for label in OWN_LABELS:
        if label in labels:
            raise Invalid(f"{path}.{label}", "every action gets this label; take another name for yours")


def _check_condition(rule: object, needs: Sequence[Need], path: str) -> None:
    """Refuse a condition that speaks of an action which may not be over."""
    named = {need.action for need in needs}
    for word, keys in referenced_fields(rule[: limits.RULE_LENGTH_MAX]) if isinstance(rule, str) else ():
        for key in keys or () if word == "needs" else ():
            if key not in named:
                existing = ", ".join(sorted(named)) or "nothing"
                raise Invalid(path, f"it speaks of {key!r:.60}, and the action needs {existing}; add it to `needs`")


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


def _input_needs(inputs: object, path: str) -> list[Need]:
    """The actions whose outputs an action has as inputs, each once. The rest of the inputs is checked as of a job."""
    found: dict[str, Need] = {}
    for number, item in enumerate(inputs if isinstance(inputs, list) else ()):
        title = item.get("workload") if isinstance(item, dict) else None
        if isinstance(title, str) and title:
            found.setdefault(name_of(title), Need(name_of(title), WHEN[0], f"{path}.inputs[{number}].workload"))
    return list(found.values())


def _needs_of(raw: object, path: str) -> list[Need]:
    if isinstance(raw, str):
        return [Need(name_of(raw), WHEN[0], path)]
    if not isinstance(raw, Mapping):
        raise Invalid(path, "this is the name of an action, or a mapping such as {build: finished}")
    for name, when in raw.items():
        if not isinstance(name, str):
            raise Invalid(path, f"the name of an action is a text, not {name!r:.60}")
        if when not in WHEN:
            raise Invalid(f"{path}.{name:.60}", f"this is {', '.join(WHEN[:-1])} or {WHEN[-1]}, not {when!r:.60}")
    return [Need(name_of(name), when, f"{path}.{name:.60}") for name, when in raw.items()]


def _mapping(value: object, path: str, message: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(path or "$", message)
    for key in value:
        if not isinstance(key, str):
            raise Invalid(path or "$", f"the name of a field is a text, not {key!r:.60}")
    return value
