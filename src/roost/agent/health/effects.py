"""What the agent machine wants of the health checks."""

import msgspec

from roost.agent.health.probe import ProbeTarget


class WatchHealth(msgspec.Struct, frozen=True):
    token: int
    target: ProbeTarget


class CheckHealth(msgspec.Struct, frozen=True):
    """Carry out the health check of a run after this pause; answer with `probed`."""

    token: int
    pause_ms: int


class LeaveHealth(msgspec.Struct, frozen=True):
    token: int
