"""Following a run: one stream of changes for all actions and one stream for each log, in one thread, nothing polled."""

import time
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from roost.cli.ci.output import Lines
from roost.cli.ci.runs import PipelineRun, cancel_run, elements_of
from roost.cli.ci.stages import Stage, StageResult
from roost.cli.common.interrupts import Interrupts, Watcher
from roost.cli.work.why import BLOCKED_CODES, pending_reasons
from roost.client import Client
from roost.client.errors import ApiError
from roost.client.stream import ServerEvent, StreamFollower, next_of, read_piece
from roost.schema.feed import AttemptView, ChangeView, EndingView, MissingView
from roost.schema.work import InstanceView, WorkloadView

LOGS_MAX = 64  # streams open at a time; the next log is read when one of them ends; nothing is lost
ASKED_MAX = 3  # waiting actions whose reason is asked for at a time
HOPELESS = ("no_nodes", "unsatisfiable", "quota_exceeded", "needs_approval")  # shown also while other actions run


class RunFollower:
    """A run in progress. `follow` returns when it is finished, or when stdout is closed."""

    def __init__(
        self, client: Client, run: PipelineRun, stages: Sequence[Stage], tell: Lines, interrupts: Interrupts
    ) -> None:
        self.watcher = Watcher(run.name, interrupts, self.cancel_all, self._reasons)
        self._client = client
        self._run = run
        self._stages = {stage.workload.key: stage for stage in stages}
        self._tell = tell
        self._interrupts = interrupts
        self._logs: dict[StreamFollower, tuple[Stage, int]] = {}
        self._next: deque[tuple[Stage, int, int]] = deque()  # logs that wait for a stream: element, first attempt

    def follow(self, since: int, *, from_start: bool = False) -> list[StageResult]:
        """Follow to the end. `from_start`: also print what was written before."""
        kinds, prefix = ("workload", "instance"), f"{self._run.project}/{self._run.name}-"
        changes = self._client.changes.open(since=since, kinds=kinds, prefix=prefix)
        try:
            for stage in self._stages.values() if from_start else ():
                self._inspect(stage)
            while self._logs or self._next or not all(stage.reported for stage in self._stages.values()):
                self._open_logs()
                timeout_s = self.watcher.tick()
                if timeout_s is None:
                    break
                found = next_of([changes, *self._logs], timeout_s, self._interrupts.fd)
                if found is None:
                    continue
                ready, event = found
                if ready is changes:
                    self._changed(event)
                else:
                    self._wrote(ready, event)
        finally:
            for follower in (changes, *self._logs):
                follower.close()
        return [stage.result() for stage in self._stages.values()]

    def cancel_all(self) -> None:
        cancel_run(self._client, [stage.workload for stage in self._stages.values() if not stage.is_over])

    def _changed(self, event: ServerEvent) -> None:
        if event.name == "reset":  # changes since then are no longer available
            for outdated in self._stages.values():
                self._inspect(outdated)
        if event.name != "change":
            return
        change = msgspec.json.decode(event.data, type=ChangeView)
        stage = self._stages.get(change.key.rpartition(".")[0] if change.kind == "instance" else change.key)
        if stage is None:  # of another run whose name begins like this one's
            return
        if change.object is None:
            stage.gone = stage.gone or change.kind == "workload"
        elif change.kind == "instance":
            self._moved(stage, msgspec.convert(change.object, InstanceView))
        else:
            stage.workload = msgspec.convert(change.object, WorkloadView)
        if stage.misses():
            self._inspect(stage)
        self._settle(stage)

    def _inspect(self, stage: Stage) -> None:
        """Request missed changes: after a reset, and of instances that ended together with their workload."""
        workload = stage.workload
        page = self._client.workloads.page(workload.project, workload.name)
        if not page.items:
            stage.gone = True
        else:
            stage.workload = page.items[0]
            for instance in elements_of(self._client, stage.workload):
                if instance.attempt or instance.is_over:
                    self._moved(stage, instance)
        self._settle(stage)

    def _moved(self, stage: Stage, instance: InstanceView) -> None:
        before = stage.instances.get(instance.index)
        stage.instances[instance.index] = instance
        if stage.wants_log(instance):
            stage.followed.add(instance.index)
            stage.logs_open += 1
            self._next.append((stage, instance.index, stage.attempts.get(instance.index, 0) + 1))
        if before is None or (before.state, before.attempt) != (instance.state, instance.attempt):
            self._tell.moved(stage, before, instance)

    def _open_logs(self) -> None:
        """Read pending logs; the log of an action only after the logs of its dependencies."""
        for _ in range(len(self._next)):
            stage, index, attempt = self._next.popleft()
            needs = [self._stages[key] for key in stage.needs if key in self._stages]
            if len(self._logs) >= LOGS_MAX or any(need.logs_open for need in needs):
                self._next.append((stage, index, attempt))
                continue
            workload = stage.workload
            follower = self._client.logs.follow(workload.project, workload.name, index, attempt=attempt)
            try:
                follower.advance(time.monotonic())
            except ApiError as error:
                if error.status != 404:
                    raise
                self._log_over(stage, index)  # deleted already
                continue
            self._logs[follower] = stage, index

    def _wrote(self, follower: StreamFollower, event: ServerEvent) -> None:
        stage, index = self._logs[follower]
        piece = read_piece(event)
        if isinstance(piece, bytes):
            self._tell.write(stage, index, piece)
        elif isinstance(piece, MissingView):
            self._tell.write(stage, index, f"[roost: {piece.bytes} more bytes are missing]\n".encode())
        elif isinstance(piece, AttemptView):
            self._tell.cut(stage, index)  # what the attempt before wrote last may be half a line
        elif isinstance(piece, EndingView):
            del self._logs[follower]
            follower.close()
            self._log_over(stage, index)

    def _log_over(self, stage: Stage, index: int) -> None:
        self._tell.cut(stage, index)
        stage.logs_open -= 1
        self._settle(stage)

    def _settle(self, stage: Stage) -> None:
        if stage.is_over and not stage.logs_open and not stage.reported:
            stage.reported = True
            self._tell.ended(stage, stage.result())

    def _reasons(self) -> Iterator[str]:
        """Why actions are pending: of the first ones, because the others depend on them."""
        stages = self._stages.values()
        codes = HOPELESS if any(stage.is_running for stage in stages) else BLOCKED_CODES
        for stage in [stage for stage in stages if not stage.is_over and not stage.is_running][:ASKED_MAX]:
            yield from pending_reasons(self._client, stage.workload.project, stage.workload.name, codes)
