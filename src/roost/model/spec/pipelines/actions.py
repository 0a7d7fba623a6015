"""The actions of a pipeline: what they need, and the order in which they can run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from roost.model.errors import Invalid
from roost.model.spec.pipelines.artifacts import Artifacts
from roost.model.spec.pipelines.labels import name_of


class Need(NamedTuple):
    action: str  # its name
    when: str
    path: str


class ActionService(NamedTuple):
    """A service that lives as long as an action: a database, a cache."""

    title: str
    fields: dict[str, Any]
    path: str


class Action(NamedTuple):
    number: int
    title: str
    needs: tuple[Need, ...]
    fields: dict[str, Any]
    services: tuple[ActionService, ...] = ()
    artifacts: Artifacts = Artifacts()

    @property
    def name(self) -> str:
        return name_of(self.title)

    @property
    def is_array(self) -> bool:
        return "each" in self.fields or self.fields.get("count", 1) != 1

    @property
    def path(self) -> str:
        return f"actions[{self.number}]"


class Concurrency(NamedTuple):
    """A newer run cancels older ones of the same group, and of the same values of these variables."""

    group: str
    by: tuple[str, ...] = ()


class Pipeline(NamedTuple):
    """A file that was read: actions in the order in which they can run, else as they are written."""

    title: str
    project: str
    env: dict[str, Any]
    actions: tuple[Action, ...]
    concurrency: Concurrency | None = None
    inputs: tuple[Any, ...] = ()  # of all actions

    @property
    def name(self) -> str:
        return name_of(self.title)


def chosen(pipeline: Pipeline, only: Sequence[str]) -> Pipeline:
    """The pipeline with these actions and their dependencies; without names, all of them."""
    if not only:
        return pipeline
    by_name = {action.name: action for action in pipeline.actions}
    for title in only:
        if name_of(title) not in by_name:
            existing = ", ".join(action.title for action in pipeline.actions[:20])
            raise Invalid("actions", f"there is no action {title!r:.60}; there are {existing}")
    wanted = dict.fromkeys(map(name_of, only))
    for name in (waiting := list(wanted)):
        for need in by_name[name].needs:
            if need.action not in wanted:
                wanted[need.action] = None
                waiting.append(need.action)
    return pipeline._replace(actions=tuple(action for action in pipeline.actions if action.name in wanted))


def in_order(actions: Sequence[Action]) -> list[Action]:
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
