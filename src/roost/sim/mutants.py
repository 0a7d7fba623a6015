"""Safety rules switched off, one at a time. Each must be noticed: otherwise nobody would notice if it were missing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from roost.agent.actor import Action, Actor
from roost.core import agents, ahead, assign, check, expire, gang, lose, move, place, preempt, retry, waits
from roost.core.claim import claim_of
from roost.core.effects import Step
from roost.core.order import Line, Waiting
from roost.core.state import Contact, Settings, State
from roost.core.step import HANDLERS
from roost.model.events import Parted, Reported
from roost.model.frames import Answer, Order, Run, Welcome
from roost.model.instance import Instance
from roost.model.node import Node
from roost.model.states import FINISHED, HOLDING
from roost.model.workload import Workload
from roost.ports.store import Snapshot
from roost.sim import faults, gateway
from roost.sim import server as simulated
from roost.sim.gateway import Gateway
from roost.sim.keeper import Keeper
from roost.sim.server import Server

#: (owner, name, what it is instead); an owner that is a mapping has keys instead of names.
Patch = tuple[Any, Any, Any]
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The world with one rule less."""
    patches = MUTANTS[name]() if name else []
    before = [(owner, key, _get(owner, key)) for owner, key, _ in patches]
    for patch in patches:
        _set(*patch)
    try:
        yield
    finally:
        for patch in before:
            _set(*patch)


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Put a mutant on the list under its own name."""
    MUTANTS[make.__name__] = make
    return make


def _get(owner: Any, key: Any) -> Any:
    return owner[key] if isinstance(owner, dict) else getattr(owner, key)


def _set(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, dict):
        owner[key] = value
    else:
        setattr(owner, key, value)


# the engine and the gateway


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
    return [(Server, "_recover", lambda self, *, fenced: self._wake())]


@mutant
def answers_lost_nodes() -> list[Patch]:
    """A beat is answered, and so a lease renewed, though the node was given up."""

    def heard(self: Server, node: str, session: int) -> bool:
        known = self.state.nodes.get(node)
        return known is not None and known.session == session and self.ready

    return [(Server, "heard", heard), (Gateway, "_close_lost", lambda self, done: None)]


@mutant
def beats_may_be_missing() -> list[Patch]:
    """The acknowledgement of a beat covers those before it, also one that never came."""
    return [(gateway, "MISSING_MAX", 1_000_000)]


# leases


@mutant
def lease_without_margin() -> list[Patch]:
    """A node is given up at the very moment its lease ends, before its keeper has killed anything."""
    return [(faults, "MARGIN_MS", 0)]


@mutant
def lease_ends_early_at_server() -> list[Patch]:
    """The server gives work away while the node still has its lease."""
    return [(faults, "MARGIN_MS", -700)]


@mutant
def keeper_ignores_lease() -> list[Patch]:
    """Nobody stops what is leased."""
    lease = Keeper.lease
    return [(Keeper, "lease", lambda self, until_ms: lease(self, until_ms + 1_000_000))]


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
def shorter_lease_counts_at_once() -> list[Patch]:
    """After a restart with a shorter lease, nobody remembers the longer ones that agents still hold."""
    load = simulated.load

    def forgetful(snapshot: Snapshot, now: int, settings: Settings) -> State:
        state = load(snapshot, now, settings)
        for name, contact in state.contacts.items():
            if state.nodes[name].status != "lost":
                contact.lease_until_ms = now + settings.lease_ms + settings.lease_margin_ms
                state.at(contact.lease_until_ms, "lease", name)
        return state

    return [(simulated, "load", forgetful)]


@mutant
def exclusive_is_not_exclusive() -> list[Patch]:
    """What must not run twice starts elsewhere as soon as a stream breaks."""
    parted = agents.parted

    def hasty(state: State, out: Step, event: Parted, now: int) -> None:
        parted(state, out, event, now)
        node = state.nodes.get(event.node)
        for token in sorted(state.held[event.node]) if node is not None and node.status == "suspect" else ():
            if state.held[event.node][token].state != "stopping":
                retry.lost(state, out, state.held[event.node][token], "its stream broke", now)

    return [(HANDLERS, Parted, hasty)]


# what is believed


@mutant
def old_sessions_are_heard() -> list[Patch]:
    """Words of an older session count."""

    def contact_of(state: State, name: str, session: int) -> Contact | None:
        return state.contacts.get(name)

    return [(agents, "contact_of", contact_of)]


@mutant
def old_hellos_are_heard() -> list[Patch]:
    """A hello that was overtaken by a later one is believed."""
    return [(agents, "_is_stale", lambda node, hello: False)]


@mutant
def names_are_given_to_strangers() -> list[Patch]:
    """A machine gets the name of another one that may still be running what must not run twice."""
    return [(agents, "_refusal", lambda state, node, hello, now: "")]


@mutant
def old_attempts_are_heard() -> list[Patch]:
    """A report of an older attempt is taken for one of the attempt that lives."""
    reported, run_order = agents.reported, assign.run_order
    slots: dict[int, str] = {}

    def noted(state: State, instance: Instance) -> Run:
        slots[instance.token] = instance.key
        return run_order(state, instance)

    def gullible(state: State, out: Step, event: Reported, now: int) -> None:
        reports = []
        for report in event.reports:
            instance = state.instances.get(slots.get(report.token, ""))
            if instance is not None and instance.state in HOLDING and instance.node == event.node:
                report = msgspec.structs.replace(report, token=instance.token)
            reports.append(report)
        reported(state, out, msgspec.structs.replace(event, reports=tuple(reports)), now)

    return [(HANDLERS, Reported, gullible), (place, "run_order", noted)]


@mutant
def reports_count_twice() -> list[Patch]:
    """The room of an attempt is given back each time its end is reported."""
    reported = agents.reported

    def doubled(state: State, out: Step, event: Reported, now: int) -> None:
        for report in event.reports:
            for instance in state.instances.values():
                if instance.token == report.token and instance.state in FINISHED and event.node in state.nodes:
                    held = claim_of(state.spec_of(instance), instance)
                    state.fleet.take(event.node, held, -1)
        reported(state, out, event, now)

    return [(HANDLERS, Reported, doubled)]


@mutant
def ghosts_take_no_room() -> list[Patch]:
    """What was given away and still runs on a node that is back is not counted there."""
    haunt = agents._haunt

    def harmless(state: State, node: Node, run: Run, *, has_room: bool) -> None:
        haunt(state, node, run, has_room=False)

    return [(agents, "_haunt", harmless)]


@mutant
def room_is_free_when_stopping() -> list[Patch]:
    """Room is given back when a stop is asked for, not when it is confirmed."""
    free = HOLDING - {"stopping"}
    return [(move, "HOLDING", free), (check, "HOLDING", free)]


@mutant
def placed_is_forgotten_with_its_node() -> list[Patch]:
    """What was placed on a node that is lost, and not started yet, stays there."""
    lose_node = lose.lose_node

    def forgetful(state: State, out: Step, node: Node, cause: str, now: int) -> None:
        held = state.held[node.name]
        placed = {token: held.pop(token) for token in sorted(held) if held[token].state == "placed"}
        lose_node(state, out, node, cause, now)
        held.update(placed)

    return [(expire, "lose_node", forgetful)]


@mutant
def retries_have_no_limit() -> list[Patch]:
    """What fails is tried again for ever."""

    def always(workload: Workload, instance: Instance, ending: str, now: int) -> bool:
        return True

    return [(retry, "_tries_again", always)]


@mutant
def tokens_begin_again() -> list[Patch]:
    """After a restart, tokens begin where they began the first time."""
    load = simulated.load

    def forgetful(snapshot: Snapshot, now: int, settings: Settings) -> State:
        state = load(snapshot, now, settings)
        state.serial = state.meta.born
        return state

    return [(simulated, "load", forgetful)]


# the agent


@mutant
def whole_assignment_only_adds() -> list[Patch]:
    """What is not in the whole assignment goes on running."""

    def replace(self: Actor, orders: tuple[Order, ...], generation: int, now: int) -> list[Action]:
        self.generation = generation
        return [action for order in orders for action in self._obey(order, now)]

    return [(Actor, "_replace", replace)]


@mutant
def gangs_start_in_parts() -> list[Patch]:
    """Of a gang whoever fits is placed."""

    def some(state: State, line: Line) -> list[Waiting]:
        return gang.assemble(state, line)[:1]

    return [(place, "assemble", some)]


@mutant
def gangs_do_not_regroup() -> list[Patch]:
    """Whoever of a gang comes back is placed without the others."""

    def alone(state: State, line: Line) -> list[Waiting]:
        head = line.head(state)
        return [head] if head is not None and head.again else gang.assemble(state, line)

    return [(place, "assemble", alone), (retry, "regroup", lambda *_: None)]


@mutant
def quotas_are_not_looked_at() -> list[Patch]:
    """A project gets whatever it asks for."""
    return [(place, "excess", lambda *_: {})]


@mutant
def reservations_are_not_kept() -> list[Patch]:
    """Nodes that are reserved are given to anybody."""
    return [(place, "kept_out", lambda *_: None), (waits, "kept_out", lambda *_: None)]


@mutant
def anybody_preempts_anybody() -> list[Patch]:
    """Whoever wants room stops whoever has it."""
    return [(preempt, "may_preempt", lambda *_: True), (place, "could_preempt", lambda *_: True)]


@mutant
def gaps_are_ignored() -> list[Patch]:
    """Orders are followed though others before them are missing."""
    answered = Actor.answered

    def careless(self: Actor, answer: Answer, now: int) -> list[Action]:
        if answer.generation > self.generation and not answer.whole:
            answer = msgspec.structs.replace(answer, base=self.generation)
        return answered(self, answer, now)

    return [(Actor, "answered", careless)]


@mutant
def welcome_may_come_twice() -> list[Patch]:
    """A welcome that is repeated takes an agent back to what it was told first."""
    welcomed = Actor.welcomed

    def forgetful(self: Actor, welcome: Welcome, now: int) -> list[Action]:
        self.session = 0
        return welcomed(self, welcome, now)

    return [(Actor, "welcomed", forgetful)]


# work ahead


@mutant
def followers_begin_at_once() -> list[Patch]:
    """Who is to stand behind another begins beside it."""
    start = Keeper.start
    return [(Keeper, "start", lambda self, run: start(self, msgspec.structs.replace(run, after=0)))]


@mutant
def who_steps_up_takes_no_room() -> list[Patch]:
    """The room of one that has ended is free, though another has it now."""
    step_up = ahead.step_up

    def generous(state: State, out: Step, gone: Instance) -> None:
        follower = state.followers.get(gone.token)
        step_up(state, out, gone)
        if follower is not None and not follower.behind:
            state.fleet.take(follower.node, claim_of(state.spec_of(follower), follower), -1)

    return [(move, "step_up", generous)]


from roost.sim import mutants_leading, mutants_living  # noqa: E402, F401  (they put their own on the list)
