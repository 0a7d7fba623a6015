"""Loss: a node whose lease has ended runs nothing any more that must not run twice, so it can be given away."""

from roost.core.effects import Step
from roost.core.move import settle_node
from roost.core.retry import lost
from roost.core.state import GONE_AFTER_MS, State
from roost.model.node import Node


def lose_node(state: State, out: Step, node: Node, cause: str, now: int) -> None:
    """The lease has ended without a word: out of the fleet, and its work runs elsewhere by policy."""
    contact = state.contacts[node.name]
    contact.connected = False
    contact.lease_until_ms = min(contact.lease_until_ms, now)
    settle_node(state, out, node, cause, now, is_lost=True)
    for held in contact.ghosts.values():
        state.fleet.take(node.name, held, -1)
    contact.ghosts.clear()
    for token in sorted(state.held[node.name]):
        instance = state.held[node.name][token]
        kept = state.spec_of(instance).policy.when_lost == "keep"
        if not kept or (instance.state == "stopping" and not instance.moving):
            lost(state, out, instance, f"node {node.name} was lost: {cause}", now)
    state.at(now + GONE_AFTER_MS, "gone", node.name)
