"""Following a run: one stream of changes for all actions and one stream for each log, in one thread, nothing polled."""

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from roost.cli.ci_runs import Run, elements_of
from roost.cli.ci_stages import Result, Stage
from roost.cli.ci_tell import Lines
from roost.cli.interrupts import Interrupts
from roost.cli.output import say
from roost.cli.run import AGAIN_S, PATIENCE_S, WAITING_CODES
from roost.client.errors import ApiError, Unreachable
from roost.client.logs import read_piece
from roost.client.stream import Event, Follower, next_of
from roost.client.types import Attempt, Change, Ending, Instance, Workload

if TYPE_CHECKING:
    from roost.client import Client

LOGS_MAX = 64  # streams open at a time; the next log is read when one of them is over, and nothing of it is lost
ASKED_MAX = 3  # waiting actions whose reason is asked for at a time
HOPELESS = ("no_nodes", "unsatisfiable", "quota_exceeded")  # told also while other actions run: it may take for ever


class Following:
    """A run on its way. `follow` returns when it is over, or when whoever watches has left."""

    def __init__(
        self, client: "Client", run: Run, stages: Sequence[Stage], tell: Lines, interrupts: Interrupts
    ) -> None:
        self.left = False
        self._client = client
        self._run = run
        self._stages = {stage.workload.key: stage for stage in stages}
        self._tell = tell
        self._interrupts = interrupts
        self._seen = 0  # interrupts that were acted on
        self._logs: dict[Follower, tuple[Stage, int]] = {}
        self._next: deque[tuple[Stage, int, int]] = deque()  # logs that wait for a stream: element, first attempt
        self._look_at = time.monotonic() + PATIENCE_S
        self._told_why: dict[str, None] = {}

    def follow(self, since: int) -> list[Result]:
        """Tell everything from a revision on, until all is over."""
        kinds, prefix = ("workload", "instance"), f"{self._run.project}/{self._run.name}-"
        changes = self._client.follow_changes(since=since, kinds=kinds, prefix=prefix)
        try:
            while not self._is_done() and not self.left:
                self._open_logs()
                timeout_s = self._tick()
                if self.left:
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
            for each in (changes, *self._logs):
                each.close()
        return [stage.result() for stage in self._stages.values()]

    def cancel_all(self) -> None:
        """Ask for the end of all that is not over: who waits for others first, so that nothing starts meanwhile."""
        for stage in reversed(self._stages.values()):
            if not stage.is_over:
                try:
                    self._client.cancel(stage.workload.project, stage.workload.name)
                except ApiError as error:
                    if error.status != 404:  # it is over and gone by now
                        raise

    def _is_done(self) -> bool:
        return not self._logs and not self._next and all(stage.told for stage in self._stages.values())

    def _changed(self, event: Event) -> None:
        if event.name == "reset":  # what happened since is not known any more
            for stage in self._stages.values():
                self._look(stage)
            return
        if event.name != "change":
            return
        change = msgspec.json.decode(event.data, type=Change)
        key = change.key.rpartition(".")[0] if change.kind == "instance" else change.key
        if key not in self._stages:  # of another run whose name begins like this one's
            return
        stage = self._stages[key]
        if change.object is None:
            stage.gone = stage.gone or change.kind == "workload"
        elif change.kind == "instance":
            self._moved(stage, msgspec.convert(change.object, Instance))
        else:
            stage.workload = msgspec.convert(change.object, Workload)
        if stage.misses():
            self._look(stage)
        self._settle(stage)

    def _look(self, stage: Stage) -> None:
        """Ask for what was not told: after a reset, and for what ended in the same moment as its workload."""
        workload = stage.workload
        page = self._client.page(workload.project, workload.name)
        if not page.items:
            stage.gone = True
        else:
            stage.workload = page.items[0]
            for instance in elements_of(self._client, stage.workload):
                if instance.attempt or instance.is_over:
                    self._moved(stage, instance)
        self._settle(stage)

    def _moved(self, stage: Stage, instance: Instance) -> None:
        before = stage.instances.get(instance.index)
        stage.instances[instance.index] = instance
        if stage.wants_log(instance):
            stage.followed[instance.index] = None
            stage.logs_open += 1
            self._next.append((stage, instance.index, stage.attempts.get(instance.index, 0) + 1))
        if before is None or (before.state, before.attempt) != (instance.state, instance.attempt):
            self._tell.moved(stage, before, instance)

    def _open_logs(self) -> None:
        """Read what waits to be read, but what an action writes not before all that those wrote whose end it needs."""
        for _ in range(len(self._next)):
            stage, index, attempt = self._next.popleft()
            if len(self._logs) >= LOGS_MAX or any(self._is_read(key) for key in stage.needs):
                self._next.append((stage, index, attempt))
                continue
            workload = stage.workload
            follower = self._client.follow_log(workload.project, workload.name, index, attempt=attempt)
            try:
                follower.advance(time.monotonic())
            except ApiError as error:
                if error.status != 404:
                    raise
                self._log_over(stage, index)  # not kept any more
                continue
            self._logs[follower] = stage, index

    def _is_read(self, key: str) -> bool:
        return key in self._stages and self._stages[key].logs_open > 0

    def _wrote(self, follower: Follower, event: Event) -> None:
        stage, index = self._logs[follower]
        piece = read_piece(event)
        if isinstance(piece, bytes):
            self._tell.write(stage, index, piece)
        elif isinstance(piece, Attempt):
            self._tell.cut(stage, index)  # what the attempt before wrote last may be half a line
        elif isinstance(piece, Ending):
            del self._logs[follower]
            follower.close()
            self._log_over(stage, index)

    def _log_over(self, stage: Stage, index: int) -> None:
        self._tell.cut(stage, index)
        stage.logs_open -= 1
        self._settle(stage)

    def _settle(self, stage: Stage) -> None:
        """The end of an action is told when all that it wrote was."""
        if stage.is_over and not stage.logs_open and not stage.told:
            stage.told = True
            self._tell.ended(stage, stage.result())

    def _tick(self) -> float:
        """Act on Ctrl-C, say what is waited for; how long to wait until that is to be done again."""
        if self._interrupts.count > self._seen:
            self._interrupts.clear()
            self._seen = self._interrupts.count
            if self._seen > 1:
                self.left = True
                return 0.0
            say(f"cancelling {self._run.name}; once more to leave without waiting")
            self.cancel_all()
        if time.monotonic() >= self._look_at:
            self._say_why()
            self._look_at = time.monotonic() + AGAIN_S
        return max(0.0, self._look_at - time.monotonic())

    def _say_why(self) -> None:
        """What keeps actions from running: the first ones that wait, for those after them wait for them."""
        stages = self._stages.values()
        codes = HOPELESS if any(stage.is_running for stage in stages) else WAITING_CODES
        for stage in [stage for stage in stages if not stage.is_over and not stage.is_running][:ASKED_MAX]:
            try:
                why = self._client.why(stage.workload.project, stage.workload.name, advice=False)
            except (ApiError, Unreachable):
                continue  # it is gone by now, or the server is away for a moment: the streams come back by themselves
            if why.code in codes and why.words not in self._told_why:
                self._told_why[why.words] = None
                say(why.words)
