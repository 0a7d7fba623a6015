"""Trials: whether a change would place an instance now, as the real core decides on a copy of the state."""

from heapq import heapify
from typing import NamedTuple

import msgspec

from roost.core.hold import let_go
from roost.core.state import State
from roost.core.step import step
from roost.core.whatif import glance
from roost.model.events import Event
from roost.model.states import HOLDING
from roost.model.workload import Ask, Workload


class Change(NamedTuple):
    """What would be different: another ask for the workload, or something that happens."""

    ask: Ask | None = None
    events: tuple[Event, ...] = ()


class Subject(NamedTuple):
    """The instance in question. `number` is its index."""

    workload: Workload
    number: int

    @property
    def key(self) -> str:
        """PROJECT/NAME.INDEX"""
        return f"{self.workload.key}.{self.number}"


def subject_of(state: State, workload: Workload, index: int) -> Subject:
    """Whom a trial is about: an instance that ran before is itself, of those that never ran it is the first."""
    return Subject(workload, min(index, max(state.begun(workload), 0)))


def placed_by(state: State, subject: Subject, change: Change) -> str:
    """The node on which a change would place an instance at once; empty if it would not."""
    trial = glance(state)
    trial.settings = msgspec.structs.replace(state.settings, ahead_max=0)  # to stand behind somebody is no start
    if change.ask is not None:
        _ask_instead(trial, subject, change.ask)
    step(trial, change.events, trial.now_ms)
    instance = trial.instances.get(subject.key)
    return instance.node if instance is not None and instance.state in HOLDING else ""


def _ask_instead(trial: State, subject: Subject, ask: Ask) -> None:
    """Let a workload ask for something else. It waits where it would wait had it always asked for that."""
    old = trial.workloads[subject.workload.key]
    new = msgspec.structs.replace(old, policy=msgspec.structs.replace(old.policy, ask=ask))
    _leave_lines(trial, old)
    trial.workloads[old.key] = new
    if trial.has_fresh(new):
        trial.queue.add_fresh(new)
    for index in range(trial.begun(new)):
        instance = trial.instances.get(f"{new.key}.{index}")
        if instance is not None and instance.state == "queued" and instance.ready_ms <= trial.now_ms:
            trial.queue.add_again(new, index)


def _leave_lines(trial: State, workload: Workload) -> None:
    """It comes back in no line any more, and no place is kept for it. Where it is fresh, lines see that it changed."""
    key = workload.key
    for line in trial.queue.lines.values():
        if any(entry[3] == key for entry in line.again):
            line.again = [entry for entry in line.again if entry[3] != key]
            heapify(line.again)
    for line, hold in list(trial.holds.items()):
        if hold.for_whom.rpartition(".")[0] == key:
            let_go(trial, line)
