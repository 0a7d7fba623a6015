"""Safety rules switched off, one at a time: each must be noticed, or the simulator would not notice its absence either."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from roost.agent.actor import Action, Actor
from roost.core import agents, expire, move, retry
from roost.core.effects import Step
from roost.core.lose import lose_node
from roost.core.state import Contact, State
from roost.model.events import Reported
from roost.model.frames import Answer, Report
from roost.model.instance import Instance
from roost.model.node import Node
from roost.model.states import HOLDING
from roost.sim import simulate
from roost.sim import server as sim_server
from roost.sim.keeper import Keeper
from roost.sim.server import Server

Patch = tuple[Any, str, Any]
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The world with one rule less."""
    patches = MUTANTS[name]()
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in before:
            setattr(owner, attribute, value)


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    MUTANTS[make.__name__] = make
    return make


# the engine


@mutant
def acts_before_commit() -> list[Patch]:
    """Effects come first, durability later."""
    commit = Server._commit

    def hasty(self: Server, life: int, done: Step) -> None:
        self._finish(done)
        commit(self, life, done)

    return [(Server, "_commit", hasty)]


@mutant
def keeps_state_after_failed_commit() -> list[Patch]:
    """What was not made durable is believed all the same."""

    def stubborn(self: Server) -> None:
        self._wake()

    return [(Server, "_recover", stubborn)]


@mutant
def answers_lost_nodes() -> list[Patch]:
    """A beat is answered, and so a lease renewed, though the node was given up."""

    def heard(self: Server, node: str, session: int) -> bool:
        known = self.state.nodes.get(node)
        if known is None or known.session != session or not self.ready:
            return False
        self._heard[node] = (session, self.clock.now_ms())
        return True

    return [(Server, "heard", heard), (Server, "_close_lost", lambda self, done: None)]


@mutant
def misses_lost_beats() -> list[Patch]:
    """A beat may be missing; the acknowledgement of the next one covers it."""
    return [(sim_server, "MISSING_MAX", 1_000_000)]


# leases


@mutant
def lease_without_margin() -> list[Patch]:
    """A node is given up at the very moment its lease ends, before the keeper has killed anything."""
    return [(simulate, "MARGIN_MS", 0)]


@mutant
def lease_ends_early_at_server() -> list[Patch]:
    """The server gives work away before the lease of the node has ended."""
    return [(simulate, "MARGIN_MS", -700)]


@mutant
def keeper_ignores_lease() -> list[Patch]:
    """Nobody stops what is leased."""
    return [(Keeper, "_look_at_lease", lambda self: None)]


@mutant
def hello_keeps_old_lease() -> list[Patch]:
    """A node that is back is measured by the lease of its last session."""
    reconnect = agents._reconnect

    def careless(state: State, node: Node, now: int) -> None:
        before = state.contacts[node.name].lease_until_ms
        reconnect(state, node, now)
        state.contacts[node.name].lease_until_ms = max(before, now)

    return [(agents, "_reconnect", careless)]


@mutant
def shortened_lease_counts_at_once() -> list[Patch]:
    """After a restart with a shorter lease, nobody remembers the longer ones that agents still hold."""
    load = sim_server.load

    def forgetful(snapshot: Any, now: int, settings: Any) -> State:
        state = load(snapshot, now, settings)
        for contact in state.contacts.values():
            contact.lease_until_ms = min(contact.lease_until_ms, now + settings.lease_ms + settings.lease_margin_ms)
        return state

    return [(sim_server, "load", forgetful)]


@mutant
def exclusive_is_not_exclusive() -> list[Patch]:
    """What must not run twice starts elsewhere as soon as a stream breaks."""
    parted = agents.parted

    def hasty(state: State, out: Step, event: Any, now: int) -> None:
        parted(state, out, event, now)
        node = state.nodes.get(event.node)
        if node is not None and node.status == "suspect":
            for token in sorted(state.held[node.name]):
                instance = state.held[node.name][token]
                if instance.state != "stopping":
                    retry.lost(state, out, instance, "its stream broke", now)

    return [(sim_server.step.__globals__["HANDLERS"], "parted", hasty)]


# what is believed


@mutant
def old_sessions_are_heard() -> list[Patch]:
    """Words of an older session count."""

    def contact_of(state: State, name: str, session: int) -> Contact | None:
        return state.contacts.get(name)

    return [(agents, "contact_of", contact_of)]
