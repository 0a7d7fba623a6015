"""The events of hooks, made from the transitions of a commit.

The same transitions come with a commit and, after a restart or under a new leader, from the stories of the whole state:
either way an event has the same id.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from roost.core.state.state import State
from roost.model.limits import STORY_MAX
from roost.model.reasons.attempts import Preempted
from roost.model.reasons.power import PowerReason
from roost.model.reasons.reason import Reason
from roost.model.records.files import Outputs
from roost.model.records.instance import Instance
from roost.model.records.result import Result
from roost.model.records.transition import (
    InstanceTransition,
    InstanceTransitioned,
    NodeTransition,
    NodeTransitioned,
    Transitioned,
    WorkloadRemoved,
    lines_between,
)
from roost.model.records.webhook import FINISHED_WORKLOAD, POWER, PREEMPTED, WebhookEvent, is_end
from roost.model.records.workload import Workload
from roost.ports.store import Change
from roost.schema.reason_text import message_of, reason_data, render
from roost.server.views.outputs import outputs_summary
from roost.server.views.results import result_view
from roost.server.views.usage import run_usage_view
from roost.server.views.work import Progress, counts_of, progress_of, workload_state

SCAN_BURST = 2_000  # records read before other tasks get their turn: a millisecond
SLACK_MS = 10_000  # a workload's end has no revision: within this time of a position it may be sent twice, never not
REPORTED_MAX = 20_000  # ends of workloads that are remembered, so that a later change does not send one again
KINDS = frozenset({"instance", "workload", "node"})


class Produced(NamedTuple):
    """What an attempt left."""

    result: Result | None = None
    outputs: Outputs | None = None


Results = Mapping[tuple[str, int], Produced]  # of instances and their attempts


class Batch(NamedTuple):
    revision: int
    at_ms: int
    transitions: Sequence[Transitioned]
    workloads: Sequence[Change]  # those that were deleted in the same step included
    progress: Mapping[str, Progress]  # of these workloads
    results: Results = {}  # of attempts that ended

    @property
    def size(self) -> int:
        return len(self.transitions) + len(self.workloads)


class Occurrence(NamedTuple):
    """An event and its reason, which is redacted for the project of each hook."""

    event: WebhookEvent
    reason: Reason | None


class WebhookReader:
    """Turns transitions into events. `life` distinguishes stores whose revisions begin again."""

    def __init__(self, life: int) -> None:
        self._life = life
        self._reported: OrderedDict[str, None] = OrderedDict()

    def read(self, batch: Batch) -> list[Occurrence]:
        """The events of one commit: of instances and nodes first, then of finished workloads."""
        events = self._transitions(batch.transitions, batch.results)
        for change in batch.workloads:
            workload = _WORKLOADS.decode(change.value) if change.value is not None else None
            if workload is not None and workload.finished_ms:
                events += self._finished(workload, batch.progress.get(change.key, (0, {})), batch.revision)
        return events

    async def read_state(self, state: State, since: int, since_ms: int) -> tuple[list[Occurrence], int]:
        """The events after a revision, from the stories of a state; without those that are committed meanwhile.

        The second: how many objects had more transitions than their story holds.
        """
        until = state.revision
        found: list[Occurrence] = []
        torn = 0
        finished = [
            (workload, progress_of(state, workload.key))
            for workload in (state.workloads[key] for key in state.finished)
            if workload.finished_ms >= since_ms - SLACK_MS
        ]
        nodes = [(node.name, node.story) for node in state.nodes.values()]
        last: dict[str, int] = {}
        for number, instance in enumerate(list(state.instances.values())):
            story = instance.story
            if story and story[-1].revision > since:
                torn += len(story) >= STORY_MAX and story[0].revision > since + 1
                lines = lines_between(story, since, until)
                ended: list[Transitioned] = [InstanceTransitioned(instance.key, line) for line in lines]
                found += self._transitions(ended, _results(state, ended))
                last[instance.workload] = max([last.get(instance.workload, 0), *(line.revision for line in lines)])
            if number % SCAN_BURST == SCAN_BURST - 1:
                await asyncio.sleep(0)
        for name, status_lines in nodes:
            recent = lines_between(status_lines, since, until)
            found += self._transitions([NodeTransitioned(name, line) for line in recent], {})
        for workload, progress in finished:
            # It ended with the last of its instances, which have revisions; if none ran since, at an unknown one.
            found += self._finished(workload, progress, last.get(workload.key) or until)
        found.sort(key=lambda occurrence: occurrence.event.revision)
        return found, torn

    def _transitions(self, transitions: Iterable[Transitioned], results: Results) -> list[Occurrence]:
        seen: Counter[tuple[str, str, int]] = Counter()  # one commit may bring an instance into the same state twice
        found: list[Occurrence] = []
        for item in transitions:
            if isinstance(item, NodeTransitioned):
                found.append(Occurrence(self._node(item.key, item.transition), item.transition.reason))
            elif isinstance(item, InstanceTransitioned):
                key, line, record = item.key, item.transition, item.record
                seen[key, line.state, line.revision] += 1
                found_there = results.get((key, line.attempt)) if record is None else _last(record, line.attempt)
                event = self._instance(key, line, seen[key, line.state, line.revision], found_there or Produced())
                found.append(Occurrence(event, line.reason))
        return found

    def _instance(self, key: str, line: InstanceTransition, number: int, left: Produced) -> WebhookEvent:
        workload, _, index = key.rpartition(".")
        project, _, name = workload.partition("/")
        what: str = line.state
        if isinstance(line.reason, PowerReason):
            what = POWER
        elif line.state == "stopping" and isinstance(line.reason, Preempted):
            what = PREEMPTED
        ended = is_end(line.before, line.state)
        return WebhookEvent(
            id=self._id("instance", workload, index, line.state, line.revision, number),
            event=f"instance.{what}", at_ms=line.at_ms, revision=line.revision,
            kind="instance", key=key, project=project, workload=name, index=int(index),
            state=line.state, before=line.before or "", ended=ended,
            message=render(line.reason), reason=reason_data(line.reason),
            attempt=line.attempt, node=line.node, version=line.version,
            exit_code=line.exit_code if ended else None, signal=line.signal if ended else None,
            result=result_view(left.result) if ended else None,
            outputs=outputs_summary(left.outputs) if ended else None,
            usage=run_usage_view(line.usage) if ended else None,
        )  # fmt: skip

    def _node(self, name: str, line: NodeTransition) -> WebhookEvent:
        return WebhookEvent(
            id=self._id("node", name, line.state, line.revision), event=f"node.{line.state}", at_ms=line.at_ms,
            revision=line.revision, kind="node", key=name, state=line.state, before=line.before or "",
            message=render(line.reason), reason=reason_data(line.reason), node=name,
        )  # fmt: skip

    def _finished(self, workload: Workload, progress: Progress, revision: int) -> Iterator[Occurrence]:
        id = self._id("workload", workload.key, workload.serial, workload.finished_ms)
        if id in self._reported:
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.popitem(last=False)
        self._reported[id] = None
        counts = counts_of(workload, *progress)
        event = WebhookEvent(
            id=id, event=FINISHED_WORKLOAD, at_ms=workload.finished_ms, revision=revision, kind="workload",
            key=workload.key, project=workload.project, workload=workload.name,
            state=workload_state(workload, counts), message=message_of(workload.reason),
            reason=reason_data(workload.reason),
            version=workload.version, counts=counts,
        )  # fmt: skip
        yield Occurrence(event, workload.reason)

    def _id(self, *parts: str | int) -> str:
        return sha256("/".join(map(str, (self._life, *parts))).encode()).hexdigest()[:32]


def batch_of(state: State, changes: Iterable[Change], transitions: Sequence[Transitioned]) -> Batch:
    """A commit to be read later. Records are changed in place, so the progress is copied at once."""
    removed = [item for item in transitions if isinstance(item, WorkloadRemoved)]
    workloads = [change for change in changes if change.kind == "workload" and change.value is not None]
    progress = {item.key: (item.placed_count, item.counts) for item in removed}
    progress |= {change.key: progress_of(state, change.key) for change in workloads}
    last = [Change("workload", item.key, item.record) for item in removed]
    return Batch(state.revision, state.now_ms, transitions, [*last, *workloads], progress, _results(state, transitions))


def _results(state: State, transitions: Sequence[Transitioned]) -> Results:
    """What attempts that ended have left, of instances that still have a record."""
    found: dict[tuple[str, int], Produced] = {}
    for item in transitions:
        if isinstance(item, InstanceTransitioned) and is_end(item.transition.before, item.transition.state):
            instance = state.instances.get(item.key)
            if instance is not None and (instance.result is not None or instance.outputs is not None):
                found[item.key, instance.attempt] = Produced(instance.result, instance.outputs)
    return found


def _last(record: bytes, attempt: int) -> Produced | None:
    instance = _INSTANCES.decode(record)
    return Produced(instance.result, instance.outputs) if instance.attempt == attempt else None


_WORKLOADS = msgspec.msgpack.Decoder(Workload)
_INSTANCES = msgspec.msgpack.Decoder(Instance)
