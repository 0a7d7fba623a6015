"""Rules about logs switched off, one at a time; see core.py."""

from collections.abc import Iterable, Iterator
from typing import Any

from roost.agent.logs.machine import Effect, Log, SpoolMachine, UnlinkFile
from roost.model.protocol import LogChunk
from roost.server.agents.ingest_machine import Admission, IngestMachine
from roost.server.logs import ends, machine
from roost.server.logs.machine import LogMachine
from roost.server.logs.parts import SealPart
from roost.sim.mutants.core import Rule, mutant, without


@mutant(SpoolMachine, "was_read")
def log_bytes_are_dropped_between_chunks(was_read: Rule, self: SpoolMachine, data: bytes, *given: Any) -> Any:
    """An agent drops the first byte of every chunk of a log but the first."""
    assert self._reading is not None
    return was_read(self, data[1:] if self._reading.kept and len(data) > 1 else data, *given)


@mutant(SpoolMachine, "_finish")
def logs_are_dropped_before_they_are_shipped(_: Rule, self: SpoolMachine, log: Log) -> list[Effect]:
    """An agent removes the file of a forgotten run although the server has not all of it."""
    if not log.released:
        return []
    self.logs.pop(log.name, None)
    self._shipped.pop(log.name, None)
    return [UnlinkFile(log.name)]


without(
    "logs_are_dropped_before_they_are_sealed",
    "An agent removes the file of a log that the server has, and that only the disk of that server has.",
    (Log, "is_durable", property(lambda self: self.is_shipped)),
)
without(
    "parts_are_called_durable",
    "A server calls bytes durable that are on its own disk only.",
    (LogMachine, "durable", lambda self, name: self.size(name) or 0),
)
without(
    "gaps_between_segments_are_ignored",
    "All segments of a log count, also those behind a gap.",
    (machine, "chain", lambda segments: sorted(segments)),
)


@mutant(LogMachine, "seals")
def parts_are_sealed_short(seals: Rule, self: LogMachine, now: int) -> list[SealPart]:
    """The last byte of a part is not sealed, and the segment is named after the whole part."""
    found = seals(self, now)
    for seal in found:
        kept = self.tails.read(seal.part, 0, seal.segment.end - seal.segment.start - 1)
        assert isinstance(kept, bytes)
        self.tails.drop(seal.part)
        self.tails.append(seal.part, 0, kept + b"?")
    return list(found)


@mutant(LogMachine, "append")
def chunks_are_kept_at_any_offset(append: Rule, self: LogMachine, name: str, offset: int, *given: Any) -> Any:
    """A chunk is kept at the end of a log, wherever it belongs."""
    return append(self, name, self.size(name) or 0, *given)


@mutant(IngestMachine, "admit")
def refusals_before_a_hello_are_final(admit: Rule, self: IngestMachine, node: str, chunk: LogChunk) -> Admission:
    """A server without memory refuses the logs of a node for good before it has learnt what the node ran."""
    admission: Admission = admit(self, node, chunk)
    return Admission.NOT_ITS_OWN if admission is Admission.TOO_EARLY else admission


without(
    "logs_are_left_by_removed_workloads",
    "Segments stay that a leader did not drop before it crashed.",
    (ends, "is_forgotten", lambda state, prefix: False),
)
without(
    "short_logs_are_finished",
    "A log is called finished when its attempt is over, however much of it is here.",
    (LogMachine, "missing", lambda self, name, end: 0),
)


@mutant(machine, "sources")
def logs_are_fetched_from_the_first_peer(
    _: Rule, logs: LogMachine, name: str, size: int, peers: Iterable[Any]
) -> Iterator[tuple[Any, int]]:
    """The first other server that has a byte of a log is taken for the one that has all of it."""
    for peer in peers:
        if not logs.size(name):
            yield peer, 0
