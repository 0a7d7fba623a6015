"""Limits of rollouts, schedules and dependencies: floor, surge, one run per tick, no start before a dependency.

Everything is checked from outside: what really runs (`sim/checks/oracle.py`) and what was committed. The limits of an
update are computed here a second time, independently.
"""

from collections.abc import Mapping, Sequence

import msgspec

from roost.model.events import Event, NodeConnected, ReportsReceived
from roost.model.protocol import Run
from roost.model.reasons.attempts import NodeDraining, PoolDraining, PoolFailed, ScaledDown, UpdatedToVersion
from roost.model.reasons.nodes import HeartbeatsMissing
from roost.model.records.instance import Instance
from roost.model.records.workload import After, Update, Workload
from roost.model.spec.cron import next_tick, ticks_between
from roost.model.states import FINISHED, InstanceState, Milestone, Overlap, RolloutState, WorkloadKind
from roost.sim.checks.oracle import Oracle, command_of, policy_of
from roost.sim.checks.records import Records
from roost.sim.world.world import Wrong

#: Why a stop has to keep to the floor of its service.
WITHIN_LIMITS = (UpdatedToVersion, NodeDraining, PoolDraining, PoolFailed, ScaledDown)
TICKS_MAX = 10_000  # of one schedule between two commits: a week of minutes; clocks here jump by an hour
DEFAULT_WHEN = {WorkloadKind.JOB: Milestone.SUCCEEDED, WorkloadKind.SERVICE: Milestone.STARTED}

Version = tuple[str, int, int]  # workload, serial, version


class ServiceCheckers:
    def __init__(self, truth: Oracle, disk: Records, retried: Mapping[str, int]) -> None:
        self._truth = truth
        self._retried = retried  # workloads that a client asked to run again
        self._disk = disk
        self._most: dict[Version, int] = {}  # how many of a version may run at once
        self._most_when_placed: dict[int, int] = {}  # token -> how many could run when it was placed
        self._commands: dict[Version, str] = {}
        self._ticks: dict[tuple[str, int, int], str] = {}  # schedule, serial, tick -> the run that was made
        self._counts: dict[str, int] = {}
        self._kinds: dict[str, WorkloadKind] = {}
        self._overlapping: dict[str, bool] = {}  # schedules that allowed it once
        self._deadlines: dict[str, bool] = {}  # nodes that were drained with a deadline once
        self._sick: dict[int, bool] = {}  # attempts whose last report is not ready
        truth.began_told = self.began

    def asks_drain(self, node: str, deadline_ms: int) -> None:
        if deadline_ms:
            self._deadlines[node] = True

    def hears(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ReportsReceived):
                reports = event.reports
            elif isinstance(event, NodeConnected):
                reports = tuple(report for _, report in event.hello.runs)
            else:
                continue
            for report in reports:
                self._sick[report.token] = not report.ready

    def committed(self) -> None:
        disk = self._disk
        for _, old, new in disk.written("workload"):
            self._remember(new)
            self._failed_goes_back(new)
            if new.parent and (old is None or old.serial != new.serial):
                self._runs_once(new)
        for key, old, new in disk.written("workload"):  # now that all runs of this commit are known
            if new.policy.schedule and old is not None and old.serial == new.serial:
                self._no_tick_is_forgotten(key, old, new)
        held_back = all(meta is not None and meta.maintenance for meta in disk.stood("meta", "meta"))
        for placed_before, placed in disk.placed():
            if held_back:
                raise Wrong(f"{placed.key} was placed while there is maintenance")
            self._placed(placed_before, placed)
        for _, old, new in disk.written("instance"):
            if new.state == "stopping" and old is not None and old.state == "running":
                self._stopped(old, new)
        for key, old, new in disk.written("node"):
            is_lost = new.status == "lost" and old is not None and old.status != "lost"
            if held_back and is_lost and isinstance(new.story[-1].reason, HeartbeatsMissing):
                raise Wrong(f"{key} was given up while there is maintenance")

    def began(self, host: str, run: Run) -> None:
        policy = policy_of(run.document)
        if policy.kind == WorkloadKind.SERVICE:
            self._not_too_many(run)
        workload = self._disk.workload(run.workload)
        if workload is not None and workload.parent:
            self._alone(run, workload)
        first = len(self._truth.by_slot[run.workload, run.serial, run.index]) == 1
        for condition in policy.after if first else ():
            self._has_come(run, condition)

    # updates

    def _remember(self, workload: Workload) -> None:
        key = workload.key
        self._most[key, workload.serial, workload.version] = workload.count + surge_of(workload)
        self._commands[key, workload.serial, workload.version] = command_of(workload.document)
        self._counts[key], self._kinds[key] = workload.count, workload.policy.kind
        if workload.policy.schedule and workload.policy.schedule.overlap == Overlap.ALLOW:
            self._overlapping[key] = True

    def _not_too_many(self, run: Run) -> None:
        """Counts runs with an allocation, not those that were rescheduled and go on out of reach."""
        runs = [live.run for live in self._truth.live.values()]
        same = [other for other in runs if (other.workload, other.serial) == (run.workload, run.serial)]
        live = [other for other in same if self._disk.holds(f"{run.workload}.{other.index}", other.token)]
        present = self._disk.workload(run.workload)
        versions = {other.version for other in live} | ({present.version} if present is not None else set())
        limits = [self._most.get((run.workload, run.serial, version), 0) for version in versions]
        # A later version may allow fewer while the order of an attempt is on its way: it starts, and is stopped.
        limits += [self._most_when_placed.get(other.token, 0) for other in live]
        most = max(limits, default=0)
        if len(live) > most > 0:
            raise Wrong(f"{len(live)} of {run.workload} run at once, at most {most} may")

    def _placed(self, old: Instance | None, new: Instance) -> None:
        workload = self._disk.now["workload"][new.workload]
        for what in ("cordoned", "draining"):
            if all(node is not None and getattr(node, what) for node in self._disk.stood("node", new.node)):
                raise Wrong(f"{new.key} was placed on {new.node}, which is {what}")
        pools = self._disk.stood("pool", self._disk.now["node"][new.node].facts.pool)
        if all(pool is not None and pool.status != "ready" for pool in pools):
            raise Wrong(f"{new.key} was placed on {new.node}, whose pool is {pools[1].status}")
        if workload.policy.kind != "service":
            return
        self._most_when_placed[new.token] = most = workload.count + surge_of(workload)
        if new.index >= most:
            raise Wrong(f"{new.key} was placed, there are to be {workload.count} and {surge_of(workload)} more")
        rollout, update = workload.rollout, workload.policy.update or Update()
        if rollout is None or not update.canary or not rollout.before or rollout.promoted:
            return
        is_changed = old is not None and old.attempt and old.version != new.version == workload.version
        before = self._commands.get((workload.key, workload.serial, old.version)) if old is not None else None
        if is_changed and before != command_of(workload.document) and update.canary <= new.index < workload.count:
            raise Wrong(f"{new.key} became version {new.version} before its {update.canary} canaries were promoted")

    def _stopped(self, old: Instance, new: Instance) -> None:
        workload = self._disk.now["workload"][new.workload]
        is_service = workload.policy.kind == "service" and not workload.unstarted_end_state
        if not is_service or not isinstance(new.reason, WITHIN_LIMITS):
            return
        if self._is_forced(new) or self._sick.get(new.token) or not old.ready_since_ms:
            return
        # An update in place may have moved it to the present version.
        available = is_available(workload, msgspec.structs.replace(old, version=new.version), new.since_ms)
        left = ready = ended = 0
        for instance in self._disk.now["instance"].values():
            if instance.workload != workload.key:
                continue
            before = self._disk.before.get(("instance", instance.key))
            was_over = before is not None and before.state in FINISHED
            ended += instance.index < workload.count and (was_over or has_ended(instance))
            is_other = instance.state == InstanceState.STOPPING and not isinstance(instance.reason, WITHIN_LIMITS)
            counted = before if is_other and before is not None else instance
            left += is_available(workload, counted, new.since_ms)
            ready += counted.state == InstanceState.RUNNING and counted.ready_since_ms > 0
        floor = floor_of(workload) - ended
        if ready < floor or (available and left < floor):
            raise Wrong(
                f"{new.key} was stopped ({new.reason}) with {left} others available and {ready} ready of "
                f"{workload.count}, at least {floor} have to be"
            )

    def _is_forced(self, instance: Instance) -> bool:
        """Whether its drain deadline has passed or its pool has failed: then it is stopped despite the floor."""
        if isinstance(instance.reason, PoolDraining | PoolFailed):
            return isinstance(instance.reason, PoolFailed)
        node = self._disk.now["node"].get(instance.node)
        is_due = node is not None and node.draining and node.drain_until_ms <= instance.since_ms
        return isinstance(instance.reason, NodeDraining) and is_due and instance.node in self._deadlines

    def _failed_goes_back(self, workload: Workload) -> None:
        rollout, update = workload.rollout, workload.policy.update or Update()
        if rollout is None or rollout.state != RolloutState.FAILED or not update.rollback or not rollout.before:
            return
        if f"{workload.key}@{rollout.before}" in self._disk.now["version"]:
            raise Wrong(f"version {workload.version} of {workload.key} failed and did not go back to {rollout.before}")

    # schedules

    def _runs_once(self, run: Workload) -> None:
        parent = self._disk.workload(run.parent)
        if parent is None or run.tick_ms % 60_000:  # run besides its ticks
            return
        tick = (run.parent, parent.serial, run.tick_ms)
        if self._ticks.setdefault(tick, run.key) != run.key:
            raise Wrong(f"{run.key} is a second run for the tick that {self._ticks[tick]} was made for")

    def _no_tick_is_forgotten(self, key: str, old: Workload, new: Workload) -> None:
        """Past ticks have their runs, or the workload has a reason why not."""
        if new.tick_ms < old.tick_ms:
            raise Wrong(f"{key} went back from tick {old.tick_ms} to {new.tick_ms}")
        has_ticked = new.policy.schedule == old.policy.schedule and new.tick_ms != old.tick_ms
        is_retried = new.submitted_ms != old.submitted_ms  # cancelled and retried in one commit
        if not has_ticked or old.finished_ms or old.unstarted_end_state or is_retried:
            return
        assert new.policy.schedule is not None
        ticks, more = ticks_between(new.policy.schedule, old.tick_ms, new.tick_ms, TICKS_MAX)
        lacking = [tick for tick in ticks if (key, new.serial, tick) not in self._ticks]
        if new.policy.schedule.overlap == Overlap.REPLACE and ticks and ticks[-1] not in lacking:
            return  # those made up for were replaced by the last one, and may be forgotten, in the same commit
        if (lacking or more) and new.reason is None:
            raise Wrong(f"{key} did not run for {lacking[:3]} of {len(ticks)} ticks and does not say why")

    def late_schedules(self, now_ms: int) -> list[str]:
        late = []
        for workload in self._disk.now["workload"].values():
            schedule = workload.policy.schedule
            if schedule is not None and not workload.unstarted_end_state and not workload.finished_ms:
                tick = next_tick(schedule, workload.tick_ms)
                if tick is not None and tick < now_ms - 1_000:
                    late.append(f"{workload.key} was due {now_ms - tick} ms ago")
        return late

    def _alone(self, run: Run, workload: Workload) -> None:
        if self._overlapping.get(workload.parent) or self._retried.get(run.workload):
            return
        if not workload.policy.fenced and not self._disk.holds(f"{run.workload}.{run.index}", run.token):
            return  # rescheduled after the loss of its node, and not fenced
        for live in self._truth.live.values():
            other = self._disk.workload(live.run.workload)
            if other is None or other.key == run.workload or other.parent != workload.parent:
                continue
            if self._disk.holds(f"{other.key}.{live.run.index}", live.run.token):
                raise Wrong(f"{run.workload} began beside {other.key}, and runs of {other.parent} do not overlap")

    # order

    def _has_come(self, run: Run, condition: After) -> None:
        """The condition that a run waited for was satisfied at least once."""
        key = condition.workload
        when = condition.when or DEFAULT_WHEN[self._kinds.get(key, WorkloadKind.JOB)]
        indexes = [run.index] if condition.each else list(range(self._counts.get(key, 0)))
        if when == Milestone.SUCCEEDED:
            for index in indexes:
                if not any(map(self._truth.succeeded, self._tokens(key, [index]))):
                    raise Wrong(f"{run.workload}.{run.index} began, and {key}.{index} has not succeeded")
        elif when == Milestone.STARTED:
            tokens = self._tokens(key, indexes)
            if self._kinds.get(key) == WorkloadKind.SERVICE:  # also a surge instance
                tokens = [token for token in self._tokens(key) if self._truth.was_well[token]]
            if not tokens:
                raise Wrong(f"{run.workload}.{run.index} began, and {key} has not started")
        elif not self._retried.get(key):
            self._is_over(run, key, indexes)

    def _is_over(self, run: Run, key: str, indexes: list[int]) -> None:
        for live in self._truth.live.values():
            is_other = live.run.workload == key and live.run.index in indexes
            if is_other and self._disk.holds(f"{key}.{live.run.index}", live.run.token):
                raise Wrong(f"{run.workload}.{run.index} began, and {key}.{live.run.index} still runs on {live.host}")

    def _tokens(self, key: str, indexes: list[int] | None = None) -> list[int]:
        """Every attempt that ever ran, also of earlier workloads of its name."""
        slots = [slot for slot in self._truth.by_slot if slot[0] == key and (indexes is None or slot[2] in indexes)]
        return [token for slot in slots for token in self._truth.by_slot[slot]]


def floor_of(workload: Workload) -> int:
    update = workload.policy.update or Update()
    return workload.count - max(update.unavailable, share_of(workload.count, update.unavailable_percent))


def surge_of(workload: Workload) -> int:
    update = workload.policy.update or Update()
    return max(update.surge, share_of(workload.count, update.surge_percent))


def share_of(count: int, percent: int) -> int:
    return (count * percent + 99) // 100


def has_ended(instance: Instance) -> bool:
    """Whether it ended, even if the same commit starts it again."""
    last = instance.story[-1].revision if instance.story else 0
    lines = [line for line in instance.story if line.revision == last]
    return instance.state in FINISHED or any(line.state in FINISHED for line in lines)


def is_available(workload: Workload, instance: Instance, now_ms: int) -> bool:
    """Whether an instance counts as available, as far as its server knew; an older version only has to be ready."""
    is_new = instance.version == workload.version
    healthy_after_ms = (workload.policy.update or Update()).healthy_after_ms if is_new else 0
    is_ready = instance.state == InstanceState.RUNNING and instance.ready_since_ms > 0
    return is_ready and instance.ready_since_ms + healthy_after_ms <= now_ms
