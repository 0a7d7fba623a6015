"""Work ahead: short runs line up behind each other on the node itself, which then need not ask between two of them.

Who stands behind another takes no room until that one has ended, and then takes exactly its room: they have the same
ask. Only the most urgent line may stand ahead, only where its runs have proved to be short, and whoever still stands
behind somebody after a while is called back. If a prefilled attempt is stopped before it starts, its successor takes
its place.
"""

from roost.core.state.queue import EquivalenceClass, Queue
from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload

SHORT_RUN_MS = 100  # runs that take longer are not worth it: asking for the next one costs some milliseconds
PREFILL_MS = 50  # so much work at most stands behind a run
LENGTHS_MAX = 10_000  # lines of which it is known how long their runs take


def record_run_length(state: State, workload: Workload, length_ms: int) -> None:
    """A run of a workload took so long: the mean of its line moves an eighth of the way, up at once if it is longer."""
    key = Queue.key_of(workload)
    if len(state.run_lengths_ms) >= LENGTHS_MAX and key not in state.run_lengths_ms:
        state.run_lengths_ms.clear()
    existing = state.run_lengths_ms.get(key, length_ms)
    state.run_lengths_ms[key] = length_ms if length_ms > SHORT_RUN_MS else (7 * existing + length_ms + 4) // 8


def prefill_depth(state: State, line: EquivalenceClass) -> int:
    """How many may stand behind a run of a line."""
    ask = line.ask
    length_ms = state.run_lengths_ms.get(line.key)
    if length_ms is None or length_ms > SHORT_RUN_MS or line.is_gang:
        return 0
    if ask.affinity or ask.require_now or ask.gpu_count or ask.ports:
        return 0
    return min(state.settings.prefill_max, PREFILL_MS // max(length_ms, 1))


def last_prefilled(state: State, instance: Instance) -> tuple[Instance, int]:
    """Who stands last behind an instance, and how many do."""
    behind = prefill_chain(state, instance)
    return (behind[-1] if behind else instance), len(behind)


def prefill_chain(state: State, instance: Instance) -> list[Instance]:
    """All who stand behind an instance, the next one first."""
    found: list[Instance] = []
    follower = state.prefilled.get(instance.token)
    while follower is not None:
        found.append(follower)
        follower = state.prefilled.get(follower.token)
    return found
