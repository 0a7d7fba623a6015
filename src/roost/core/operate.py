"""What operators hold up: cordon keeps new work from one node, maintenance keeps everything where it is."""

from roost.core.effects import Step
from roost.core.move import settle_node
from roost.core.state import State
from roost.model.errors import NotFound
from roost.model.events import Cordon
from roost.model.units import show_duration


def frozen(state: State) -> bool:
    """Whether there is maintenance: nothing is placed, moved, updated or given up."""
    return bool(state.meta.maintenance)


def maintenance_words(state: State) -> str:
    """Since when there is maintenance, and why."""
    since = show_duration(max(state.now_ms - state.meta.maintenance_since_ms, 0))
    return f"maintenance since {since}: {state.meta.maintenance}"


def cordon(state: State, out: Step, event: Cordon, now: int) -> None:
    """Nothing new comes to a node; what runs there stays. Resume ends it, as it ends a drain."""
    node = state.nodes.get(event.node)
    if node is None:
        out.reply(event.request, NotFound(f"there is no node {event.node}"))
        return
    if not node.cordoned:
        node.cordoned = True
        state.touch_node(node)
        settle_node(state, out, node, "cordon asked for", now)
    out.reply(event.request, node.name)
