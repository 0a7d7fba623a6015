"""The state machines as tables: which move is legal. A missing pair is the error.

    queued ──► placed ──► starting ──► running ──► succeeded | failed | timed_out
      │  ▲        │          │            │
      │  └────────┴── lost ◄─┴────────────┤          (a new attempt with a new token)
      ▼                                   ▼
    expired | rejected | cancelled     stopping ──► cancelled | queued (moved off a draining node)

Whatever ended may be queued again: by the retry policy (straight from running), or because somebody asked.
"""

from typing import Final, Literal

InstanceState = Literal[
    "queued", "placed", "starting", "running", "stopping", "lost",
    "succeeded", "failed", "timed_out", "cancelled", "expired", "rejected",
]  # fmt: skip
NodeState = Literal["ready", "suspect", "cordoned", "draining", "drained", "lost", "gone"]

MOVES: Final[dict[str, frozenset[str]]] = {
    "queued": frozenset({"placed", "cancelled", "expired", "rejected", "failed"}),
    "placed": frozenset({"starting", "running", "stopping", "lost", "failed", "queued"}),
    "starting": frozenset({"running", "stopping", "lost", "failed", "queued"}),
    "running": frozenset({"succeeded", "failed", "timed_out", "stopping", "lost", "queued"}),
    "stopping": frozenset({"cancelled", "lost", "queued", "succeeded", "failed", "timed_out"}),
    "lost": frozenset({"queued", "failed", "cancelled"}),
    "succeeded": frozenset({"queued"}),
    "failed": frozenset({"queued"}),
    "timed_out": frozenset({"queued"}),
    "cancelled": frozenset({"queued"}),
    "expired": frozenset({"queued"}),
    "rejected": frozenset({"queued"}),
}

NODE_MOVES: Final[dict[str, frozenset[str]]] = {
    "ready": frozenset({"suspect", "cordoned", "draining", "drained", "lost", "gone"}),
    "suspect": frozenset({"ready", "cordoned", "draining", "drained", "lost", "gone"}),
    "cordoned": frozenset({"ready", "suspect", "draining", "drained", "lost", "gone"}),
    "draining": frozenset({"drained", "ready", "suspect", "lost", "gone"}),
    "drained": frozenset({"ready", "suspect", "draining", "lost", "gone"}),
    "lost": frozenset({"ready", "cordoned", "draining", "drained", "gone"}),
    "gone": frozenset(),
}

#: States in which an instance takes room on its node. `lost` does not: the lease has ended there.
HOLDING: Final = frozenset({"placed", "starting", "running", "stopping"})
FINISHED: Final = frozenset({"succeeded", "failed", "timed_out", "cancelled", "expired", "rejected"})
LIVE: Final = HOLDING | {"queued", "lost"}
