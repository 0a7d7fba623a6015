"""What an agent's machine asks of its service beside the orders of its actor, as data."""

import msgspec

from roost.ports.driver import StopReason


class StopRun(msgspec.Struct, frozen=True):
    id: str
    grace_ms: int
    reason: StopReason
    detail: str


class CompleteLog(msgspec.Struct, frozen=True):
    name: str
    size: int


class ReleaseLog(msgspec.Struct, frozen=True):
    name: str


class TakenOver(msgspec.Struct, frozen=True):
    count: int
