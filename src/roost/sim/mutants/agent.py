"""Rules of agents and keepers switched off, one at a time; see core.py."""

from typing import Any

import msgspec

from roost.agent.actor import Action, Actor
from roost.agent.connection.machine import LinkMachine
from roost.keeper.rules import Rules
from roost.model.protocol import Answer, Beat, Hello, Order, Welcome
from roost.sim.mutants.core import Rule, mutant, without

# the agent

_welcomed = Actor.welcomed


@mutant(Actor, "_replace")
def whole_assignment_only_adds(_: Rule, self: Actor, orders: tuple[Order, ...], generation: int, now: int) -> Any:
    """What is not in the whole assignment goes on running."""
    self.generation = generation
    return [action for order in orders for action in self._obey(order, now)]


@mutant(Actor, "answered")
def gaps_are_ignored(answered: Rule, self: Actor, answer: Answer, now: int) -> Any:
    """Orders are followed though others before them are missing."""
    if answer.generation > self.generation and not answer.whole:
        answer = msgspec.structs.replace(answer, base=self.generation)
    return answered(self, answer, now)


@mutant(Actor, "welcomed")
def welcome_may_come_twice(welcomed: Rule, self: Actor, welcome: Welcome, now: int) -> Any:
    """A welcome that is repeated takes an agent back to its first orders."""
    self.session = 0
    return welcomed(self, welcome, now)


def _late_welcome(self: Actor, welcome: Welcome, now: int) -> list[Action]:
    return _welcomed(self, msgspec.structs.replace(welcome, echo_ms=now), now)


@mutant(Actor, "answered", (Actor, "welcomed", _late_welcome))
def lease_counts_from_receipt(answered: Rule, self: Actor, answer: Answer, now: int) -> Any:
    """A lease is counted from the arrival of the answer, not from the sending of the heartbeat."""
    return answered(self, msgspec.structs.replace(answer, echo_ms=answer.echo_ms and now), now)


@mutant(Actor, "_replace")
def generation_of_a_welcome_is_not_kept(replace: Rule, self: Actor, *given: Any) -> Any:
    """A new session goes on with the generation of the last one."""
    before = self.generation
    actions = replace(self, *given)
    self.generation = max(before, self.generation)
    return actions


@mutant(Actor, "beat")
def ends_are_reported_once(beat: Rule, self: Actor, *given: Any, **named: Any) -> Beat:
    """An end is forgotten once it was sent, before the server has acknowledged it."""
    made: Beat = beat(self, *given, **named)
    for report in made.reports:
        if report.state == "ended":
            del self.attempts[report.token]
    return made


@mutant(Actor, "hello")
def results_are_not_in_a_hello(hello: Rule, self: Actor, now: int) -> Hello:
    """What ended while there was no server is reported without its result."""
    made: Hello = hello(self, now)
    runs = tuple((run, msgspec.structs.replace(report, result=None)) for run, report in made.runs)
    return msgspec.structs.replace(made, runs=runs)


without(
    "silent_servers_are_kept",
    "A stream on which the server has stopped answering is never given up.",
    (LinkMachine, "_silence_ms", lambda self: 1 << 62),
)


# the keeper


@mutant(Rules, "lease")
def keeper_ignores_lease(lease: Rule, self: Rules, until: int, now: int) -> None:
    """Leased runs go on when the lease ends."""
    lease(self, until + 1_000_000, now)


@mutant(Rules, "start")
def followers_begin_at_once(start: Rule, self: Rules, order: dict[str, object], now: int) -> None:
    """A prefilled run begins beside the one it is to follow."""
    start(self, {**order, "after": ""}, now)
