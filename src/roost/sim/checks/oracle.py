"""The processes that really run, observed in the world and independent of servers and agents."""

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from roost.drivers.fake import ScriptedAct
from roost.model.protocol import Run
from roost.model.records.files import OutputGap, OutputProblem, Outputs
from roost.model.records.result import Result, ResultProblem
from roost.model.records.workload import Policy
from roost.model.spec.document import check_document, decode_document
from roost.model.spec.files import OutputBlock
from roost.model.states import WorkloadKind
from roost.sim.checks.machines import MachineTruth
from roost.sim.world.file_sets import set_of
from roost.sim.world.world import World, Wrong

WELL_MS = (0, 4_000)  # from the start of a run until its health check goes well
NEVER_WELL = 0.1  # of runs, while there are faults
TURNS_BAD = 0.02  # of looks at a run
BAD_MS = (200, 3_000)
CRASH, CRASH_FOR_EVER = "crash", "crash forever"
CRASH_MS_MAX = 400
CALM_MS = 100  # how long runs take once faults have ended

Slot = tuple[str, int, int]  # (workload, serial, index): one instance, distinct from an earlier one of its name


class ObservedEnd(NamedTuple):
    cause: str  # as the keeper tells it, or `host` when all was lost with its machine
    code: int | None
    at_ms: int


class Live(NamedTuple):
    host: str
    run: Run
    since_ms: int


class Oracle:
    """Observes all keepers, and raises when a process runs that must not."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.live: dict[int, Live] = {}
        self.endings: dict[int, ObservedEnd] = {}
        self.began_ever: dict[int, str] = {}  # attempt -> its host; without those that may begin once more
        self._ran: set[int] = set()  # attempts that have begun at least once
        self.by_slot: dict[Slot, list[int]] = {}  # every attempt that ever ran, oldest first
        self.capacity: dict[str, dict[str, int]] = {}
        self.used: dict[str, Counter[str]] = defaultdict(Counter)
        self.ways: dict[str, list[tuple[ScriptedAct, ...]]] = {}  # how the runs of each workload may go
        self._chosen: dict[int, tuple[ScriptedAct, ...]] = {}
        self._well_ms: dict[int, int | None] = {}  # how long after its start a run is well; None: never
        self.was_well: dict[int, bool] = {}  # ready at least once; without a health check, as soon as it runs
        self._sick_ms: dict[int, int] = {}
        self.began_told: Callable[[str, Run], None] = lambda host, run: None  # another check
        self.calm = False  # faults have ended: no run fails by itself
        self.machines = MachineTruth(world.seed)

    def behaviour(self, run: Run) -> tuple[ScriptedAct, ...]:
        if run.token not in self._chosen:
            self._chosen[run.token] = self._choose(run)
        return self._chosen[run.token]

    def _choose(self, run: Run) -> tuple[ScriptedAct, ...]:
        message = command_of(run.document)
        if message.startswith(CRASH) and (not self.calm or message == CRASH_FOR_EVER):
            return (ScriptedAct(self._world.between(0, CRASH_MS_MAX), 1),)
        # A run of a schedule has the name of that and a time.
        chosen = self._world.one_of(self.ways.get(run.workload) or self.ways[run.workload.partition("-")[0]])
        if self.calm:
            after_ms = None if policy_of(run.document).kind != WorkloadKind.JOB else CALM_MS
            chosen = tuple(msgspec.structs.replace(act, after_ms=after_ms, error="") for act in chosen)
        return chosen

    def is_well(self, run: Run) -> bool:
        if run.token not in self._well_ms:
            never = self._world.happens(NEVER_WELL)
            self._well_ms[run.token] = None if never else self._world.between(*WELL_MS)
        age_ms = self._world.now - self.live[run.token].since_ms
        well_ms = CALM_MS if self.calm else self._well_ms[run.token]
        is_well = well_ms is not None and age_ms >= well_ms and self._world.now >= self._sick_until_ms(run.token)
        self.was_well[run.token] |= is_well
        return is_well

    def _sick_until_ms(self, token: int) -> int:
        if not self.calm and self._world.happens(TURNS_BAD):
            self._sick_ms[token] = self._world.now + self._world.between(*BAD_MS)
        return 0 if self.calm else self._sick_ms.get(token, 0)

    def written(self, token: int) -> Result | None:
        """What a run leaves as its result: some nothing, some what is not JSON, the others their token."""
        if token not in self._ran or token % 4 == 0:
            return None
        return Result(problem=ResultProblem.NOT_JSON, size=1) if token % 4 == 1 else Result(b"%d" % token)

    def left(self, token: int, blocks: tuple[OutputBlock, ...]) -> Outputs:
        """The files that a run leaves: some runs nothing that matches, some what others leave as well."""
        if token % 5 == 0:
            gaps = tuple(OutputGap(OutputProblem.MISSING, block.path, block.required) for block in blocks)
            return Outputs(None, gaps)
        return Outputs(set_of(f"left by {token if token % 2 else token % 4}"))

    def succeeded(self, token: int) -> bool:
        ending = self.endings.get(token)
        return ending is not None and (ending.cause, ending.code) == ("exited", 0)

    def began(self, host: str, run: Run) -> None:
        token, slot = run.token, (run.workload, run.serial, run.index)
        self._world.tell(host, f"began {run.workload}.{run.index} token {token}")
        if token in self.began_ever:
            raise Wrong(f"attempt {token} of {run.workload}.{run.index} began twice")
        self.began_ever[token] = host
        self._ran.add(token)
        policy = policy_of(run.document)
        if policy.fenced:
            for other in self.by_slot.get(slot, ()):
                if other in self.live:
                    raise Wrong(f"{run.workload}.{run.index} runs twice: {other} on {self.live[other].host}, {token}")
        used = self.used[host]
        for resource, amount in policy.ask.resources:
            used[resource] += amount
            if used[resource] > self.capacity[host].get(resource, 0):
                raise Wrong(f"{host} runs {used[resource]} {resource}, it has {self.capacity[host].get(resource, 0)}")
        self.live[token] = Live(host, run, self._world.now)
        self.by_slot.setdefault(slot, []).append(token)
        self.was_well[token] = decoded(run.document).health is None
        self.began_told(host, run)

    def over(self, host: str, run: Run, cause: str, code: int | None) -> None:
        self._world.tell(host, f"over {run.workload}.{run.index} token {run.token}: {cause} {code}")
        del self.live[run.token]
        self.endings[run.token] = ObservedEnd(cause, code, self._world.now)
        used = self.used[host]
        for resource, amount in policy_of(run.document).ask.resources:
            used[resource] -= amount


decoded = lru_cache(maxsize=4096)(decode_document)


@lru_cache(maxsize=4096)
def policy_of(document: bytes) -> Policy:
    return check_document(decoded(document))


def command_of(document: bytes) -> str:
    command = decoded(document).command
    return command if isinstance(command, str) else ""
