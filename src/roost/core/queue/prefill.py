"""Prefill: short jobs are placed behind a running attempt of their node, and start without asking the server.

A prefilled attempt has no allocation until its predecessor has ended, and then gets exactly that one: they have the
same ask. Only the most urgent class is prefilled, only if its runs have proved to be short, and it is retracted after a
while. If a prefilled attempt is stopped before it starts, its successor takes its place.
"""

from roost.core.state.queue import EquivalenceClass, Queue
from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload

SHORT_RUN_MS = 100  # runs that take longer are not worth it: asking for the next one costs some milliseconds
PREFILL_MS = 50  # the most work that is prefilled behind a run
LENGTHS_MAX = 10_000  # classes with a known length of runs


def record_run_length(state: State, workload: Workload, length_ms: int) -> None:
    """The mean of the class moves an eighth of the way to the length of a run; a long run replaces it."""
    key = Queue.key_of(workload)
    if len(state.run_lengths_ms) >= LENGTHS_MAX and key not in state.run_lengths_ms:
        state.run_lengths_ms.clear()
    existing = state.run_lengths_ms.get(key, length_ms)
    state.run_lengths_ms[key] = length_ms if length_ms > SHORT_RUN_MS else (7 * existing + length_ms + 4) // 8


def prefill_depth(state: State, line: EquivalenceClass) -> int:
    ask = line.ask
    length_ms = state.run_lengths_ms.get(line.key)
    if length_ms is None or length_ms > SHORT_RUN_MS or line.is_gang:
        return 0
    if ask.affinity or ask.require_now or ask.gpu_count or ask.ports:
        return 0
    return min(state.settings.prefill_max, PREFILL_MS // max(length_ms, 1))


def last_prefilled(state: State, instance: Instance) -> tuple[Instance, int]:
    """The last one prefilled behind an instance (or itself), and how many are."""
    behind = prefill_chain(state, instance)
    return (behind[-1] if behind else instance), len(behind)


def prefill_chain(state: State, instance: Instance) -> list[Instance]:
    found: list[Instance] = []
    follower = state.prefilled.get(instance.token)
    while follower is not None:
        found.append(follower)
        follower = state.prefilled.get(follower.token)
    return found
