"""Rules of the machines around the core, and of stores, switched off one at a time; see core.py."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from roost.agent.actor import Actor, Lease
from roost.model.events import Request, inner
from roost.model.protocol import Beat
from roost.ports.store import Change, CommitFailure, Committed, Fenced
from roost.server.agents.machine import BeatReply, Session, SessionMachine
from roost.server.engine.machine import Effect, EngineMachine
from roost.sim.mutants.core import Rule, mutant, without
from roost.stores.memory import Memory
from roost.stores.sqlite import high_water
from roost.stores.sqlite.high_water import Acknowledged

LONGER_MS = 60_000

# the engine


@mutant(EngineMachine, "_fall")
def refused_requests_stay_in_the_inbox(fall: Rule, self: EngineMachine, failure: CommitFailure | None) -> list[Effect]:
    """Requests that were refused because the store failed are carried out when it is back."""
    requests = [event for event in self.inbox if isinstance(inner(event), Request)]
    effects: list[Effect] = fall(self, failure)
    self.inbox.extend(requests)
    return effects


@mutant(SessionMachine, "beat")
def reports_are_acknowledged_before_their_commit(
    beat: Rule, self: SessionMachine, session: Session, received: Beat, now: int
) -> BeatReply:
    """An agent forgets an end that no store has yet."""
    reply: BeatReply = beat(self, session, received, now)
    if reply is not BeatReply.AFTER_COMMIT:
        return reply
    session.outbox.acknowledge(received.sequence)
    return BeatReply.NOW


# the agent


@mutant(Actor, "_renew")
def keeper_gets_a_longer_lease(renew: Rule, self: Actor, echo_ms: int) -> list[Any]:
    """The keeper learns a lease that ends long after that of the server."""
    return [Lease(action.until_ms + LONGER_MS) for action in renew(self, echo_ms)]


# stores


@mutant(Memory, "apply")
def commits_are_torn(apply: Rule, self: Memory, epoch: int, changes: Sequence[Change]) -> Committed | Fenced:
    """Only the first half of a large commit is written."""
    applied: Committed | Fenced = apply(self, epoch, changes if len(changes) < 4 else changes[: len(changes) // 2])
    return applied


@mutant(Memory, "apply")
def written_bytes_are_flipped(apply: Rule, self: Memory, epoch: int, changes: Sequence[Change]) -> Committed | Fenced:
    """Every hundredth commit has a record with one wrong bit."""
    if self._revision % 100 == 99:
        value = changes[0].value
        changes = [replace(changes[0], value=value and bytes([*value[:-1], value[-1] ^ 1])), *changes[1:]]
    applied: Committed | Fenced = apply(self, epoch, changes)
    return applied


without(
    "marks_are_not_compared",
    "A database is used whatever its high-water mark says was acknowledged.",
    (high_water, "find_loss", lambda mark, found: None),
)


@mutant(high_water, "encode_mark")
def marks_are_not_written(encode: Rule, acknowledged: Acknowledged) -> bytes:
    """The mark stays as it was when the database was made."""
    mark: bytes = encode(acknowledged._replace(revision=0, epoch=0))
    return mark


@mutant(Memory, "apply")
def commits_are_not_durable(apply: Rule, self: Memory, epoch: int, changes: Sequence[Change]) -> Committed | Fenced:
    """Every fiftieth commit is acknowledged and never written: its server believed that it was on the disk."""
    if self._revision % 50 == 49:
        apply(self, epoch, ())
        return Committed(self._revision)
    applied: Committed | Fenced = apply(self, epoch, changes)
    return applied
