"""A plan: what submitting workloads would do now. Made on a copy of the state; applied exactly, or refused."""

import msgspec

from roost.model.reasons.reason import BlockerText, Reason, Text
from roost.model.reasons.subjects import InstanceRef


class Placing(msgspec.Struct, frozen=True):
    instance: str
    node: str
    strategy: str
    devices: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()


class Pending(msgspec.Struct, frozen=True):
    workload: str
    count: int
    code: str
    text: Text = ()
    blockers: tuple[BlockerText, ...] = ()


class Stopping(msgspec.Struct, frozen=True):
    instance: str
    node: str
    reason: Reason | None = None


class Plan(msgspec.Struct, frozen=True):
    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # they become a new version
    unchanged: tuple[str, ...] = ()
    placed: tuple[Placing, ...] = ()
    pending: tuple[Pending, ...] = ()
    stopped: tuple[Stopping, ...] = ()
    next_boot: tuple[str, ...] = ()  # virtual machines that go on as they are until they are started or rebooted
    notes: tuple[tuple[str, Reason], ...] = ()  # workloads, and what is worth a look; not compared

    def facts(self) -> dict[Text, str]:
        """What must be the same when the plan is applied; messages may differ."""
        report: dict[Text, str] = {(f"workload {key}",): "created" for key in self.created}
        report |= {(f"workload {key}",): "changed" for key in self.changed}
        report |= {(f"workload {key}",): "unchanged" for key in self.unchanged}
        for placing in self.placed:
            more = f", devices {list(placing.devices)}" if placing.devices else ""
            more += f", ports {list(placing.ports)}" if placing.ports else ""
            report[(placing.instance,)] = f"on {placing.node} by {placing.strategy}{more}"
        report |= {(f"waiting of {item.workload}",): f"{item.count} ({item.code})" for item in self.pending}
        report |= {("stopped ", InstanceRef.of(stopping.instance)): f"on {stopping.node}" for stopping in self.stopped}
        return report


def differences(planned: Plan, now: Plan) -> list[Text]:
    before, after = planned.facts(), now.facts()
    return [
        (*what, f": planned {before.get(what, 'nothing')}, now {after.get(what, 'nothing')}")
        for what in dict.fromkeys([*before, *after])
        if before.get(what) != after.get(what)
    ]
