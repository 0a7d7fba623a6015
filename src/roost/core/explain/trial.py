"""Trials: whether a change would place an instance now, as the real core decides on a copy of the state."""

from collections.abc import Sequence
from heapq import heapify
from typing import NamedTuple

import msgspec

from roost.core.queue.backfill import release
from roost.core.state.outcome import Step
from roost.core.state.state import State, overlay
from roost.core.state.versions import instances_of
from roost.core.step import step
from roost.model.events import Event
from roost.model.keys import InstanceKey, instance_key, split_instance_key
from roost.model.records.workload import Ask, Workload
from roost.model.states import ALLOCATED, InstanceState


class TrialChange(NamedTuple):
    ask: Ask | None = None
    events: tuple[Event, ...] = ()


class Subject(NamedTuple):
    workload: Workload
    number: int

    @property
    def key(self) -> InstanceKey:
        return instance_key(self.workload.key, self.number)


def subject_of(state: State, workload: Workload, index: int) -> Subject:
    """An instance that ran before is itself; of those that never ran it is the first."""
    return Subject(workload, min(index, max(state.placed_count(workload), 0)))


def placed_by(state: State, subject: Subject, change: TrialChange) -> str:
    """The node on which a change would place an instance at once; empty if it would not."""
    trial = overlay(state)
    trial.settings = msgspec.structs.replace(state.settings, prefill_max=0)  # a prefilled attempt has not started
    if change.ask is not None:
        _ask_instead(trial, subject, change.ask)
    step(trial, change.events, trial.now_ms)
    instance = trial.instances.get(subject.key)
    return instance.node if instance is not None and instance.state in ALLOCATED else ""


def decide(trial: State, events: Sequence[Event], now: int) -> Step:
    return step(trial, events, now)


def _ask_instead(trial: State, subject: Subject, ask: Ask) -> None:
    """Give a workload another ask. It is pending where it would be had it always asked for that."""
    old = trial.workloads[subject.workload.key]
    new = msgspec.structs.replace(old, policy=msgspec.structs.replace(old.policy, ask=ask))
    _leave_queue(trial, old)
    trial.workloads[old.key] = new
    if trial.has_unstarted(new):
        trial.queue.add_unstarted(new)
    for instance in instances_of(trial, new):
        if instance.state == InstanceState.QUEUED and instance.not_before_ms <= trial.now_ms:
            trial.queue.add_requeued(new, instance.index)


def _leave_queue(trial: State, workload: Workload) -> None:
    """Remove a workload from the requeued ones and drop its reservation. Unstarted entries are checked when read."""
    key = workload.key
    for line in trial.queue.classes.values():
        if any(entry[3] == key for entry in line.requeued):
            line.requeued = [entry for entry in line.requeued if entry[3] != key]
            heapify(line.requeued)
    for line, reserved in list(trial.backfill_reservations.items()):
        if split_instance_key(reserved.instance)[0] == key:
            release(trial, line)
