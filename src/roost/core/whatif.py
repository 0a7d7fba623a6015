"""What if: copies of a state on which the real core may be asked, while the state itself stays as it is.

`copy_state` is a copy for good. `glance` is one that is made in a moment: records are copied when they are first looked
at, so it is good only until the state itself changes.
"""

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import msgspec
import numpy as np

from roost.core.shortlist import Shortlists
from roost.core.state import Progress, State
from roost.model.instance import Instance
from roost.model.node import Node
from roost.model.workload import Workload

K = TypeVar("K")
V = TypeVar("V")
Make = Callable[[dict[Any, Any], Callable[[Any], Any]], dict[Any, Any]]

PLAIN = frozenset({int, str, bytes, bool, float, type(None)})


def copy_state(state: State) -> State:
    """An independent copy. What is finished stays behind: it decides nothing."""
    return _Copying(state, _at_once).made(live_only=True)


def glance(state: State) -> State:
    """A copy that shares what nobody looks at; good until the state changes."""
    return _Copying(state, Shared).made(live_only=False)


class Shared(dict[K, V]):
    """A mapping that begins as another one. Each value is copied when it is first looked at, so both stay apart."""

    __slots__ = ("_copy", "_own")

    def __init__(self, origin: dict[K, V], copied: Callable[[V], V]) -> None:
        super().__init__(origin)
        self._copy = copied
        self._own: set[K] = set()  # only ever asked for members

    def __getitem__(self, key: K) -> V:
        value = super().__getitem__(key)
        if key not in self._own:
            value = self._copy(value)
            self[key] = value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._own.add(key)
        super().__setitem__(key, value)

    def get(self, key: K, default: Any = None) -> Any:
        return self[key] if key in self else default

    def setdefault(self, key: K, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: K, *default: Any) -> Any:
        if key in self:
            self[key]  # noqa: B018  (whoever takes it out may change it)
        return super().pop(key, *default)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


def _at_once(origin: dict[Any, Any], copied: Callable[[Any], Any]) -> dict[Any, Any]:
    return {key: copied(value) for key, value in origin.items()}


def _progress(progress: Progress) -> Progress:
    made = Progress.__new__(Progress)
    made.begun, made.counts = progress.begun, progress.counts.copy()
    return made


class _Copying:
    """One copy being made. Whatever refers to one thing in the state refers to one thing in the copy."""

    def __init__(self, state: State, make: Make) -> None:
        self._state = state
        self._make = make
        self._new = State.__new__(State)
        self._known: dict[int, Any] = {id(state): self._new}

    def made(self, *, live_only: bool) -> State:
        """The copy."""
        state, new = self._state, self._new
        workloads, instances = state.workloads, state.instances
        if live_only:
            workloads = {key: each for key, each in workloads.items() if not each.finished_ms}
            instances = {key: each for key, each in instances.items() if each.workload in workloads}
        new.workloads = self._make(workloads, copy)
        new.instances = self._make(instances, copy)
        new.nodes = self._make(state.nodes, copy)
        known = {key: each for key, each in state.progress.items() if key in workloads} if live_only else state.progress
        new.progress = self._make(known, _progress)
        twin = self._twins(instances) if live_only else lambda each: new.instances[each.key]
        new.held = self._make(state.held, lambda held: self._make(held, twin))
        new.timers, new.policies = list(state.timers), dict(state.policies)
        new.finished = {} if live_only else dict(state.finished)
        new.finished_instances = 0 if live_only else state.finished_instances
        gangs = {gang: {key: None for key in keys if key in workloads} for gang, keys in state.gangs.items()}
        new.gangs = {gang: keys for gang, keys in gangs.items() if keys}
        new.shortlists, new.dirty, new.settings, new.kept = Shortlists(), {}, state.settings, state.kept
        self._crowd()
        for name, value in vars(state).items():
            if name not in new.__dict__:
                setattr(new, name, self._of(value))
        return new

    def _twins(self, instances: dict[str, Instance]) -> Callable[[Instance], Instance]:
        """From a record to its copy: to go by identity is quicker than by name."""
        twins = dict(zip(map(id, instances.values()), self._new.instances.values(), strict=True))
        return lambda each: twins[id(each)]

    def _crowd(self) -> None:
        """Who is where has an entry for every workload that runs."""
        crowd = self._state.fleet.crowd
        for counts in (crowd.members, crowd.repelled):
            self._known[id(counts)] = self._make(counts, dict)
        fleet = self._state.fleet
        self._known[id(fleet.facts)] = list(fleet.facts)
        self._known[id(fleet.log)] = list(fleet.log)
        self._known[id(fleet.derived)] = {}  # what was worked out is worked out again
        self._known[id(fleet._places)] = {}
        self._known[id(fleet._said)] = dict(fleet._said)  # masks, which nobody changes

    def _of(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN or isinstance(value, tuple | frozenset) or callable(value):
            return value  # tuples of a state hold only what never changes
        known = self._known.get(id(value))
        if known is not None:
            return known
        made = self._container(kind, value)
        self._known[id(value)] = made
        return made

    def _container(self, kind: type, value: Any) -> Any:
        if kind is dict:
            return {self._of(key): self._of(each) for key, each in value.items()}
        if kind is list or kind is deque:
            return kind(map(self._of, value))
        if kind is set:
            return set(value)
        if kind is np.ndarray:
            return value.copy()
        if issubclass(kind, msgspec.Struct):
            return self._record(kind, value)
        return self._object(value)

    def _record(self, kind: Any, value: Any) -> Any:
        if kind.__struct_config__.frozen:
            return value
        if kind in (Workload, Instance, Node):
            return self._known_record(kind, value)
        made = copy(value)
        for field in kind.__struct_fields__:
            setattr(made, field, self._of(getattr(value, field)))
        return made

    def _known_record(self, kind: Any, value: Any) -> Any:
        """The copy of a record. One that is finished or forgotten may still stand in a line."""
        state, new = self._state, self._new
        before: dict[str, Any]
        after: dict[str, Any]
        if kind is Workload:
            before, after = state.workloads, new.workloads
        elif kind is Instance:
            before, after = state.instances, new.instances
        else:
            before, after = state.nodes, new.nodes
        key = value.name if kind is Node else value.key
        return after[key] if before.get(key) is value and key in after else copy(value)

    def _object(self, value: Any) -> Any:
        """An object of the core: its fields one by one."""
        kind = type(value)
        made = object.__new__(kind)
        self._known[id(value)] = made
        for name in getattr(kind, "__slots__", None) or vars(value):
            setattr(made, name, self._of(getattr(value, name)))
        return made
