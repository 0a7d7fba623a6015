"""Checks of containers: what runs names its image, and what no node can fetch is not tried again."""

from roost.model.reasons.attempts import InputsFailed
from roost.model.reasons.reason import AttemptRetried
from roost.model.states import InstanceState
from roost.sim.checks.records import Records
from roost.sim.world.world import Wrong


def check_containers(records: Records) -> None:
    for key, _, now in records.changed("instance"):
        if now is None or not records.spec_of(now).policy.ask.image:
            continue
        if now.state == InstanceState.RUNNING and not now.image:
            raise Wrong(f"{key} runs a container, and no record says of which image")
        cause = now.reason.cause if isinstance(now.reason, AttemptRetried) else None
        if isinstance(cause, InputsFailed) and cause.failure.is_final:
            raise Wrong(f"{key} is tried again, although no node can fetch its image")
