"""Which log bytes are accepted from which node: a node ships the logs of attempts that were its own, and no others.

Whose an attempt was is what the state says: where the instance is, or where its story says that it was placed. A server
that has forgotten everything believes what a node says in its hello, as long as nothing is known that says otherwise.
No clock and no I/O: log_ingest.py drives it with gRPC, the fault simulator on its heap.
"""

from collections.abc import Callable, Container, Iterable
from enum import Enum, auto

from roost.core.state.state import State, awaits_agents
from roost.model.keys import STDERR_SUFFIX, log_name
from roost.model.protocol import Hello, LogChunk
from roost.server.agents.validation import LOG_NAME

SEEN_MAX = 10_000  # logs of one stream that are not looked for again; beyond, they are, which does no harm


class Admission(Enum):
    """Whether a chunk is kept."""

    KEEP = auto()
    NO_LOG = auto()  # its name or its offset make no sense
    TOO_EARLY = auto()  # nothing is known of it here, or no longer: the node is to try again
    NOT_ITS_OWN = auto()  # nothing of this log is wanted; the agent goes on with its others


class IngestMachine:
    def __init__(self, state: Callable[[], State], connected: Container[str], leads: Callable[[], bool]) -> None:
        self._state = state
        self._leads = leads  # and no other server can
        self._connected = connected  # nodes whose hello was accepted
        self._named: dict[str, frozenset[str]] = {}  # node -> logs of its hello of which the state knows nothing

    def hello(self, hello: Hello) -> None:
        """A node registers with the attempts it holds: remember those that the state does not know."""
        state = self._state()
        names = [log_name(run.workload, run.serial, run.index, run.attempt) for run, _ in hello.runs]
        unknown = [name for name in names if owner_of(state, name) is None]
        if unknown and state.settings.adopts:
            self._named[hello.node] = frozenset(name + suffix for name in unknown for suffix in ("", STDERR_SUFFIX))
        else:
            self._named.pop(hello.node, None)

    def admit(self, node: str, chunk: LogChunk) -> Admission:
        if LOG_NAME.fullmatch(chunk.log) is None or chunk.offset < 0:
            return Admission.NO_LOG
        owner = owner_of(self._state(), chunk.log)
        if owner == node:
            return Admission.KEEP
        # A server without memory learns from the hello what the node ran, and one that does not lead may lack what the
        # leader has decided: a refusal there is not final.
        if not self._leads() or (owner is None and node not in self._connected):
            return Admission.TOO_EARLY
        return Admission.KEEP if owner is None and chunk.log in self._named.get(node, ()) else Admission.NOT_ITS_OWN


class StreamListings:
    """Which logs of one stream are to be looked for among the segments: others may have sealed them before it began."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def due(self, chunks: Iterable[LogChunk]) -> list[str]:
        """Logs that are mentioned for the first time. A stream begins with a question about every log that the agent
        had before, so bytes at the beginning of another one are of a new log."""
        if len(self._seen) > SEEN_MAX:
            self._seen.clear()
        new = {chunk.log: chunk for chunk in chunks if chunk.log not in self._seen}
        self._seen.update(new)
        return [name for name, chunk in new.items() if chunk.offset or not chunk.data]


def owner_of(state: State, name: str) -> str | None:
    """The node that the attempt of a log was on; "": it has not begun; None: nothing is known of it."""
    found = LOG_NAME.fullmatch(name)
    if found is None:
        return None
    project, workload, serial, index, attempt = found.groups()
    key, number = f"{project}/{workload}", int(attempt)
    existing, instance = state.workloads.get(key), state.instances.get(f"{key}.{int(index)}")
    if existing is None or existing.serial != int(serial):
        return None
    if instance is None or number > instance.attempt:
        return None if awaits_agents(state) or (instance is None and existing.adopted) else ""
    if number == instance.attempt and instance.node:
        return instance.node
    return next((line.node for line in instance.story if line.attempt == number and line.node), None)
