"""Why an instance is where it is, or why it is pending."""

import msgspec

from roost.schema.reason_text import ReasonView
from roost.schema.work import CandidateView


class BlockerView(msgspec.Struct, frozen=True):
    """A reason with its code, and how many nodes it keeps out; 0: it is not about nodes."""

    filter: str
    reason: str
    nodes: int
    code: str


class SuggestionView(msgspec.Struct, frozen=True):
    """A change that would place the instance on `node` now: tried with the scheduler itself on a copy of the state.

    Kinds: less, rule, end, node, uncordon, quota. `path` is a field of the document. `amounts`, in base units, are what
    to ask for (less), what a node has to have (node) or what a quota has to be (quota). `instances` have to end (end).
    `facts` are what else the node has to be: pool, zone, labels.NAME.
    """

    kind: str
    message: str
    node: str
    path: str
    amounts: dict[str, int]
    instances: list[str]
    facts: dict[str, str]


class NeedView(msgspec.Struct, frozen=True):
    """One of the needs that no node meets together: the field of the document, and how many nodes meet it alone."""

    path: str
    message: str
    nodes: int


class EstimateView(msgspec.Struct, frozen=True):
    """When it may start, and from what that is known; or why it is not known."""

    message: str
    earliest_ms: int | None = None
    likely_ms: int | None = None
    latest_ms: int | None = None


class NoteView(msgspec.Struct, frozen=True):
    """What is worth a look, although nothing is placed by it: a request far above what the last runs used."""

    workload: str
    message: str
    reason: ReasonView


class WhyView(msgspec.Struct, frozen=True, kw_only=True):
    """Why an instance is where it is: as data, and as a message.

    Of a pending one: `verdict` is `wait` or `never`, `position` its place in the queue (1 is next), `queued_before` the
    first of those before it.
    """

    instance: str
    state: str
    message: str
    code: str = ""
    blockers: list[BlockerView] = []
    node: str = ""
    strategy: str = ""
    eligible: int = 0
    considered: int = 0
    candidates: list[CandidateView] = []
    verdict: str = ""
    suggestions: list[SuggestionView] = []
    contradiction: list[NeedView] = []
    position: int | None = None
    queued_before: list[str] = []
    estimate: EstimateView | None = None
    notes: list[NoteView] = []
