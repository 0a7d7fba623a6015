"""Work ahead: short runs line up behind each other on the node itself, which then need not ask between two of them.

Who stands behind another takes no room until that one has ended, and then takes exactly its room: they have the same
ask. Only the most urgent line may stand ahead, only where its runs have proved to be short, and whoever still stands
behind somebody after a while is called back. One that is stopped before it began is followed by who stood behind it.
"""

from typing import TYPE_CHECKING

from roost.core.order import Line, Queue
from roost.model.instance import Instance
from roost.model.workload import Workload

if TYPE_CHECKING:
    from roost.core.effects import Step
    from roost.core.state import State

BRIEF_MS = 100  # runs that take longer are not worth it: asking for the next one costs some milliseconds
AHEAD_MS = 50  # so much work at most stands behind a run
RECALL_MS = 500  # who stands behind somebody for longer than this was wrong there
LENGTHS_MAX = 10_000  # lines of which it is known how long their runs take


def learn(state: "State", workload: Workload, length_ms: int) -> None:
    """A run of a workload took so long: the mean of its line moves an eighth of the way, up at once if it is longer."""
    key = Queue.key_of(workload)
    if len(state.lengths) >= LENGTHS_MAX and key not in state.lengths:
        state.lengths.clear()
    known = state.lengths.get(key, length_ms)
    state.lengths[key] = length_ms if length_ms > BRIEF_MS else (7 * known + length_ms + 4) // 8


def depth_of(state: "State", line: Line) -> int:
    """How many may stand behind a run of a line."""
    ask = line.ask
    length_ms = state.lengths.get(line.key)
    if length_ms is None or length_ms > BRIEF_MS or line.is_gang:
        return 0
    if ask.company or ask.require_now or ask.gpu_count or ask.ports:
        return 0
    return min(state.settings.ahead_max, AHEAD_MS // max(length_ms, 1))


def last_of(state: "State", instance: Instance) -> tuple[Instance, int]:
    """Who stands last behind an instance, and how many do."""
    behind = chain_of(state, instance)
    return (behind[-1] if behind else instance), len(behind)


def chain_of(state: "State", instance: Instance) -> list[Instance]:
    """All who stand behind an instance, the next one first."""
    found: list[Instance] = []
    follower = state.followers.get(instance.token)
    while follower is not None:
        found.append(follower)
        follower = state.followers.get(follower.token)
    return found


def stand_behind(state: "State", instance: Instance, other: Instance) -> None:
    """An instance waits for the room of another on its node."""
    assert other.token not in state.followers, f"somebody stands behind {other.key} already"
    instance.behind = other.token
    state.followers[other.token] = instance
    if other.node not in state.recalls:
        state.recalls.add(other.node)
        state.at(state.now_ms + RECALL_MS, "recall", other.node)


def step_up(state: "State", out: "Step", gone: Instance) -> None:
    """Somebody holds no room any more: who stood behind it has its room now, or stands behind whom it stood behind."""
    follower = state.followers.pop(gone.token, None)
    if gone.behind:
        state.followers.pop(gone.behind, None)
    if follower is not None:
        follower.behind = gone.behind
        if gone.behind:
            state.followers[gone.behind] = follower
        else:
            state.occupy(state.spec_of(follower), follower)
            out.stepped_up.append(follower)
        state.touch_instance(follower)
    gone.behind = 0
