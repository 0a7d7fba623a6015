"""Safety rules switched off, one at a time. A check must notice each: otherwise its absence would stay unnoticed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from roost.client import errors as client_errors
from roost.core import invariants, orders, replica, timers, transitions
from roost.core.explain import blockers
from roost.core.lifecycle import restarts
from roost.core.nodes import reports as node_reports
from roost.core.queue import backfill, gang, place, preemption
from roost.core.state.allocation import allocation_of
from roost.core.state.outcome import Step
from roost.core.state.queue import EquivalenceClass, PendingHead
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.state.timers import TimerKind
from roost.model.errors import NoService
from roost.model.events import NodeDisconnected, ReportsReceived
from roost.model.protocol import Beat
from roost.model.reasons.attempts import StreamClosed
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.workload import Workload
from roost.model.states import ABSENT, ALLOCATED, FINISHED, InstanceState, NodeStatus
from roost.ports.store import CommitFailure
from roost.server.agents.machine import BeatReply, Session, SessionMachine
from roost.server.cluster.machine import Elected, LeadershipMachine
from roost.server.engine import machine
from roost.server.engine.machine import CommitChanges, Effect, EngineMachine, SleepUntil
from roost.sim.world.faults import Faults
from roost.stores.memory import Memory

#: (owner, name, replacement); an owner that is a mapping has keys instead of names.
Patch = tuple[Any, Any, Any]
Rule = Callable[..., Any]  # a function of the product, as it is


class Mutant(NamedTuple):
    """A rule of the product that can be switched off."""

    rule: str  # what happens without it
    patches: Callable[[], list[Patch]]
    themes: bool = False  # only worlds with services, order, schedules, pools or operators can show it


MUTANTS: dict[str, Mutant] = {}
#: The fault without which a mutant is hardly ever noticed, and how long a leader without a store may answer then.
TROUBLE_FOR = {
    "answers_for_ever": ("lonely_server", 0),
    "commands_are_carried_out_again": ("bad_weather", 0),
    "lease_counts_from_receipt": ("bad_weather", 0),
    "old_attempts_are_heard": ("bad_weather", 0),
    "refusals_before_a_hello_are_final": ("slow_start", 0),
    "resends_requests_that_are_not_idempotent": ("late_crash", 0),
    "shorter_lease_counts_at_once": ("crash_server", 0),
    "takes_over_without_grace": ("lonely_server", 8_000),
    "welcome_may_come_twice": ("bad_weather", 0),
}


@contextmanager
def mutated(name: str, *, harmless: bool = False) -> Iterator[None]:
    """The world with one rule less. `harmless`: the same world, with the rule."""
    patches = MUTANTS[name].patches() if name and not harmless else []
    trouble, grace_ms = TROUBLE_FOR.get(name, ("", 0))
    patches = [*patches, (Faults, "often", trouble), (Faults, "often_grace_ms", grace_ms)]
    with ExitStack() as stack:
        for owner, key, value in patches:
            is_mapping = isinstance(owner, dict)
            stack.enter_context(patch.dict(owner, {key: value}) if is_mapping else patch.object(owner, key, value))
        yield


def without(name: str, rule: str, *patches: Patch, themes: bool = False) -> None:
    """Register a mutant that replaces functions by simpler ones."""
    MUTANTS[name] = Mutant(rule, lambda: list(patches), themes)


def mutant(owner: Any, key: str, *more: Patch, themes: bool = False) -> Callable[[Rule], Rule]:
    """Register a mutant that wraps a function: it gets the original as its first argument."""

    def listed(instead: Rule) -> Rule:
        def patches() -> list[Patch]:
            original = getattr(owner, key)
            return [(owner, key, lambda *given, **named: instead(original, *given, **named)), *more]

        MUTANTS[instead.__name__] = Mutant(" ".join((instead.__doc__ or "").split()), patches, themes)
        return instead

    return listed


# results

without(
    "results_are_not_stored",
    "An end is stored without the result that its report has.",
    (node_reports, "set_result", lambda state, instance, result: None),
)
without(
    "results_of_earlier_attempts_stay",
    "A retry begins with the result of the attempt before it.",
    (place, "set_result", lambda state, instance, result: None),
)


# the engine and the gateway


@mutant(EngineMachine, "go_on")
def acts_before_commit(go_on: Rule, self: EngineMachine) -> list[Effect]:
    """Effects come first, durability later."""
    effects: list[Effect] = go_on(self)
    is_committing = isinstance(effects[-1], CommitChanges) and self.deciding is not None
    return [self.deciding, *effects] if is_committing else effects  # type: ignore[list-item]


@mutant(EngineMachine, "commit_failed")
def keeps_state_after_failed_commit(_: Rule, self: EngineMachine, failure: CommitFailure) -> list[Effect]:
    """What was not made durable is believed all the same."""
    self.deciding = None
    return [SleepUntil(0)]


@mutant(EngineMachine, "_refuse")
def reports_a_commit_in_doubt_as_failed(
    refuse: Rule, self: EngineMachine, error: NoService, *, in_doubt: bool
) -> list[Effect]:
    """A request whose commit may have happened is answered as if nothing had been done."""
    effects: list[Effect] = refuse(self, error, in_doubt=False)
    return effects


without(
    "resends_requests_that_are_not_idempotent",
    "A client without an answer sends every request again.",
    (client_errors, "may_send_again", lambda code, *, is_idempotent: True),
)


@mutant(EngineMachine, "heard", (SessionMachine, "lost", lambda self, node: None))
def answers_lost_nodes(_: Rule, self: EngineMachine, node: str, session: int, *given: Any) -> bool:
    """A beat is answered, and so a lease renewed, though the node was given up."""
    known = self.state.nodes.get(node)
    return known is not None and known.session == session and self.is_leading


@mutant(SessionMachine, "beat")
def beats_may_be_missing(beat: Rule, self: SessionMachine, session: Session, received: Beat, now: int) -> BeatReply:
    """The acknowledgement of a beat covers those before it, also one that never came."""
    session.sequence = max(session.sequence, received.sequence - 1)
    reply: BeatReply = beat(self, session, received, now)
    return reply


# leases


@mutant(EngineMachine, "__init__")
def lease_without_margin(init: Rule, self: EngineMachine, settings: Settings, **given: Any) -> None:
    """A node is given up at the very moment its lease ends, before its keeper has killed anything."""
    init(self, msgspec.structs.replace(settings, lease_margin_ms=0), **given)


@mutant(EngineMachine, "__init__")
def lease_ends_early_at_server(init: Rule, self: EngineMachine, settings: Settings, **given: Any) -> None:
    """The server gives work away while the node still has its lease."""
    init(self, msgspec.structs.replace(settings, lease_margin_ms=-700), **given)


@mutant(node_reports, "_reconnect")
def hello_keeps_old_lease(reconnect: Rule, state: State, node: Node, now: int) -> None:
    """A node that is back is measured by the lease of its last session."""
    before = state.liveness[node.name].lease_until_ms
    reconnect(state, node, now)
    state.liveness[node.name].lease_until_ms = max(before, now)


@mutant(machine, "take_over")
def shorter_lease_counts_at_once(take_over: Rule, state: State, now: int, *, unclean: bool) -> None:
    """After a restart with a shorter lease, the longer ones that agents still hold are forgotten."""
    take_over(state, now, unclean=unclean)
    settings = state.settings
    for name, contact in state.liveness.items():
        if state.nodes[name].status not in ABSENT:
            contact.lease_until_ms = now + settings.lease_ms + settings.lease_margin_ms
            state.at(contact.lease_until_ms, TimerKind.LEASE, name)


@mutant(node_reports, "node_disconnected")
def fencing_is_ignored(parted: Rule, state: State, out: Step, event: NodeDisconnected, now: int) -> None:
    """What must not run twice starts elsewhere as soon as a stream breaks."""
    parted(state, out, event, now)
    node, held = state.nodes.get(event.node), state.allocated[event.node]
    for token in sorted(held) if node is not None and node.status == NodeStatus.SUSPECT else ():
        if held[token].state != InstanceState.STOPPING:
            restarts.lost(state, out, held[token], StreamClosed(event.node), now)


# reports of agents

without(
    "old_sessions_are_heard",
    "Reports of an older session count.",
    (node_reports, "liveness_of", lambda state, name, session: state.liveness.get(name)),
)
without(
    "old_hellos_are_heard",
    "A hello that was overtaken by a later one is believed.",
    (node_reports, "_is_stale", lambda node, hello: False),
)
without(
    "names_are_given_to_strangers",
    "A machine gets the name of another one that may still be running what must not run twice.",
    (node_reports, "_refusal", lambda state, node, hello, now: ""),
)


@mutant(transitions, "charge_usage")
def usage_counts_twice(charge: Rule, state: State, spec: Workload, instance: Instance, now: int) -> None:
    """An attempt counts again in the sums of usage if it is tried again."""
    charge(state, spec, instance, now)
    if instance.failures or instance.losses:
        charge(state, spec, instance, now)


@mutant(transitions, "charge_usage")
def lost_attempts_are_free(charge: Rule, state: State, spec: Workload, instance: Instance, now: int) -> None:
    """An attempt whose end is not reported is missing in the sums of usage."""
    if instance.usage is not None:
        charge(state, spec, instance, now)


_SLOTS: dict[int, str] = {}  # attempt -> its instance


def _noted(state: State, instance: Instance) -> Any:
    _SLOTS[instance.token] = instance.key
    return orders.run_order(state, instance)


@mutant(node_reports, "reports_received", (place, "run_order", _noted))
def old_attempts_are_heard(reported: Rule, state: State, out: Step, event: ReportsReceived, now: int) -> Any:
    """A report of an older attempt is taken for one of the attempt that lives."""
    reports = []
    for report in event.reports:
        instance = state.instances.get(_SLOTS.get(report.token, ""))
        if instance is not None and instance.state in ALLOCATED and instance.node == event.node:
            report = msgspec.structs.replace(report, token=instance.token)
        reports.append(report)
    return reported(state, out, msgspec.structs.replace(event, reports=tuple(reports)), now)


@mutant(node_reports, "reports_received")
def reports_count_twice(reported: Rule, state: State, out: Step, event: ReportsReceived, now: int) -> Any:
    """The room of an attempt is given back each time its end is reported."""
    for report in event.reports:
        for instance in state.instances.values():
            if instance.token == report.token and instance.state in FINISHED and event.node in state.nodes:
                state.fleet.take(event.node, allocation_of(state.spec_of(instance), instance), -1)
    return reported(state, out, event, now)


@mutant(node_reports, "_track_orphan")
def ghosts_take_no_room(track: Rule, *given: Any, has_room: bool) -> None:
    """What was given away and still runs on a node that is back is not counted there."""
    track(*given, has_room=False)


without(
    "room_is_free_when_stopping",
    "Room is given back when a stop is asked for, not when it is confirmed.",
    *((module, "ALLOCATED", ALLOCATED - {InstanceState.STOPPING}) for module in (transitions, invariants)),
)


@mutant(timers, "lose_node")
def placed_is_forgotten_with_its_node(lose: Rule, state: State, out: Step, node: Node, reason: Any, now: int) -> None:
    """What was placed on a node that is lost, and not started yet, stays there."""
    held = state.allocated[node.name]
    placed = {token: held.pop(token) for token in sorted(held) if held[token].state == InstanceState.PLACED}
    lose(state, out, node, reason, now)
    held.update(placed)


without("retries_have_no_limit", "What fails is tried again without end.", (restarts, "_tries_again", lambda *_: True))


@mutant(machine, "take_over")
def tokens_begin_again(take_over: Rule, state: State, now: int, *, unclean: bool) -> None:
    """After a restart, tokens begin where they began the first time."""
    take_over(state, now, unclean=unclean)
    state.serial = state.meta.first_serial


# the queue


def _alone(state: State, line: EquivalenceClass) -> list[PendingHead]:
    head = state.head_of(line)
    return [head] if head is not None and head.is_requeued else gang.pending_members(state, line)


without(
    "gangs_start_in_parts",
    "Of a gang the members that fit are placed.",
    (place, "pending_members", lambda state, line: gang.pending_members(state, line)[:1]),
)
without(
    "gangs_do_not_regroup",
    "A member of a gang that comes back is placed without the others.",
    (place, "pending_members", _alone),
    (restarts, "regroup", lambda *_: None),
)
without("quotas_are_not_looked_at", "A project gets whatever it asks for.", (place, "quota_excess", lambda *_: {}))
without(
    "reservations_are_not_kept",
    "Nodes that are reserved are given to any project.",
    *((module, "unreserved_mask", lambda *_: None) for module in (backfill, blockers)),
)
without(
    "anybody_preempts_anybody",
    "A pending instance stops any other to get its room.",
    (preemption, "may_preempt", lambda *_: True),
    (place, "could_preempt", lambda *_: True),
)


@mutant(transitions, "activate")
def who_steps_up_takes_no_room(activate: Rule, state: State, out: Step, gone: Instance) -> None:
    """The room of an instance that has ended is free, though a prefilled one has it now."""
    follower = state.prefilled.get(gone.token)
    activate(state, out, gone)
    if follower is not None and not follower.prefilled_behind:
        state.fleet.take(follower.node, allocation_of(state.spec_of(follower), follower), -1)


# leadership

without("nobody_is_fenced", "The store takes commits of former leaders.", (Memory, "_leads", lambda self, epoch: True))
without(
    "answers_for_ever",
    "A leader without a store answers agents without end.",
    (LeadershipMachine, "may_answer", lambda self, now: True),
)
without(
    "takes_over_without_grace",
    "A new leader counts leases from now, though the old one may still be answering.",
    (replica, "_grace_ms", lambda state, now, unclean: 0),
)


@mutant(LeadershipMachine, "_elected")
def takes_over_behind(_: Rule, self: LeadershipMachine) -> Elected | None:
    """A standby leads with what it has followed so far, not with all that was committed."""
    won, self._won = self._won, None
    if won is not None:
        self._is_following = False
        self.proved(self._asked_ms)
    return won


# They register their own.
from roost.sim.mutants import agent, containers, files, logs, machines, pipelines, services, shells  # noqa: E402, F401
