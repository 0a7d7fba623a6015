"""The records on disk, decoded, and as they were before the commit that is being checked."""

from collections.abc import Sequence
from typing import Any

import msgspec

from roost.core.state.records import Meta
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.project import Pool, Project, Reservation
from roost.model.records.usage import DayUsage
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED, InstanceState
from roost.ports.store import Change

TYPES: dict[str, type] = {
    "instance": Instance, "workload": Workload, "version": Workload, "node": Node, "pool": Pool, "meta": Meta,
    "project": Project, "reservation": Reservation, "usage": DayUsage,
}  # fmt: skip
DECODERS: dict[str, Any] = {kind: msgspec.msgpack.Decoder(type) for kind, type in TYPES.items()}


class Records:
    """The disk as objects. What a commit changed is kept in both forms until the next commit."""

    def __init__(self) -> None:
        self.forgotten()

    def forgotten(self) -> None:
        self.now: dict[str, dict[str, Any]] = {kind: {} for kind in TYPES}
        self.before: dict[tuple[str, str], Any] = {}  # what the last commit changed -> what it was; None: new

    def committed(self, changes: Sequence[Change]) -> None:
        self.before = {}
        for change in changes:
            existing = self.now.get(change.kind)
            if existing is None:
                continue
            self.before[change.record] = existing.get(change.key)
            if change.value is None:
                existing.pop(change.key, None)
            else:
                existing[change.key] = DECODERS[change.kind].decode(change.value)

    def changed(self, kind: str) -> list[tuple[str, Any, Any]]:
        """What the last commit changed of a kind: key, before and now. A deleted record is None now."""
        return [(key, old, self.now[kind].get(key)) for (name, key), old in self.before.items() if name == kind]

    def written(self, kind: str) -> list[tuple[str, Any, Any]]:
        return [item for item in self.changed(kind) if item[2] is not None]

    def placed(self) -> list[tuple[Instance | None, Instance]]:
        placed = [(old, new) for _, old, new in self.written("instance") if new.state == InstanceState.PLACED]
        return [(old, new) for old, new in placed if old is None or old.token != new.token]

    def stood(self, kind: str, key: str) -> tuple[Any, Any]:
        now = self.now[kind].get(key)
        return self.before.get((kind, key), now), now

    def workload(self, key: str) -> Workload | None:
        found: Workload | None = self.now["workload"].get(key)
        return found

    def spec_of(self, instance: Instance) -> Workload:
        present: Workload = self.now["workload"][instance.workload]
        older: Workload = self.now["version"].get(f"{instance.workload}@{instance.version}", present)
        return present if instance.version == present.version else older

    def holds(self, key: str, token: int) -> bool:
        instance = self.now["instance"].get(key)
        return instance is not None and instance.token == token and instance.state in ALLOCATED
