"""The plan of a chaos run: which faults occur when and for how long. The same seed gives the same plan."""

from random import Random
from typing import NamedTuple

STORES = ("sqlite", "postgres", "etcd")
SHARED = ("postgres", "etcd")
SERVERS = {"sqlite": 1, "memory": 1, "postgres": 3, "etcd": 3}
AGENTS = 3

FIRST_S = 2.0  # some jobs run by then
LAST_S = 3.0  # before the end of the faults no new one begins
PAUSE_S = (1.0, 4.0)  # between the beginnings of two faults: some of them overlap

#: Kinds of faults, the stores they belong to, and how long they last. The lease is 4 s: some last longer, some do not.
KINDS: dict[str, tuple[tuple[str, ...], tuple[float, float]]] = {
    "kill_server": (STORES, (0.1, 3.0)),
    "stop_server": (STORES, (0.5, 6.0)),
    "kill_agent": (STORES, (0.0, 0.0)),
    "stop_agent": (STORES, (0.5, 7.0)),
    "crash_node": (STORES, (0.5, 6.0)),
    "cut_agents": (STORES, (0.5, 7.0)),
    "full_disk": (STORES, (1.0, 4.0)),
    "clock_jump": (STORES, (0.1, 1.0)),
    "cut_store": (SHARED, (0.5, 5.0)),
    "store_outage": (SHARED, (0.5, 4.0)),
    "hand_over": (SHARED, (0.0, 0.0)),
}


class Fault(NamedTuple):
    """One fault. `target` is a random number: the nemesis takes it modulo the number of candidates."""

    at_s: float
    kind: str
    target: int
    for_s: float

    def __str__(self) -> str:
        return f"{self.kind} for {self.for_s:.1f} s" if self.for_s else self.kind


def plan_faults(seed: int, store: str, seconds: float) -> list[Fault]:
    """Every kind occurs before one occurs again."""
    chance = Random(f"{seed}/{store}")
    faults: list[Fault] = []
    left: list[str] = []
    at_s = FIRST_S
    while at_s < seconds - LAST_S:
        if not left:
            left = [kind for kind, (stores, _) in KINDS.items() if store in stores]
            chance.shuffle(left)
        kind = left.pop()
        for_s = chance.uniform(*KINDS[kind][1])
        faults.append(Fault(round(at_s, 2), kind, chance.randrange(1 << 16), round(min(for_s, seconds - at_s), 2)))
        at_s += chance.uniform(*PAUSE_S)
    return faults
