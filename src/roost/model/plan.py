"""A plan: what submitting workloads would do now. Made on a copy of the state; applied exactly, or refused."""

import msgspec


class Placing(msgspec.Struct, frozen=True):
    """Where an instance would go, and what it would get there."""

    instance: str
    node: str
    strategy: str
    devices: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()


class Reason(msgspec.Struct, frozen=True):
    """One reason to wait, and for how many nodes it holds; 0: it is not about nodes."""

    code: str
    words: str
    nodes: int


class Pending(msgspec.Struct, frozen=True):
    """Instances of a workload that would have no place, and why."""

    workload: str
    count: int
    code: str
    words: str = ""
    blockers: tuple[Reason, ...] = ()


class Stopping(msgspec.Struct, frozen=True):
    """An instance that would be stopped for them."""

    instance: str
    node: str
    words: str = ""


class Plan(msgspec.Struct, frozen=True):
    """All that would happen to the workloads, and to others because of them."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # they become a new version
    unchanged: tuple[str, ...] = ()
    placed: tuple[Placing, ...] = ()
    pending: tuple[Pending, ...] = ()
    stopped: tuple[Stopping, ...] = ()

    def facts(self) -> dict[str, str]:
        """What must come out the same when it is applied, thing by thing; words and their numbers may differ."""
        told = {f"workload {key}": "created" for key in self.created}
        told |= {f"workload {key}": "changed" for key in self.changed}
        told |= {f"workload {key}": "unchanged" for key in self.unchanged}
        for each in self.placed:
            more = f", devices {list(each.devices)}" if each.devices else ""
            more += f", ports {list(each.ports)}" if each.ports else ""
            told[each.instance] = f"on {each.node} by {each.strategy}{more}"
        told |= {f"waiting of {each.workload}": f"{each.count} ({each.code})" for each in self.pending}
        told |= {f"stopped {each.instance}": f"on {each.node}" for each in self.stopped}
        return told


def differences(planned: Plan, now: Plan) -> list[str]:
    """Where a plan differs from what would happen now, in words."""
    before, after = planned.facts(), now.facts()
    return [
        f"{what}: planned {before.get(what, 'nothing')}, now {after.get(what, 'nothing')}"
        for what in dict.fromkeys([*before, *after])
        if before.get(what) != after.get(what)
    ]
