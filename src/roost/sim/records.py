"""What the disk says, decoded, and what it said before the commit that is being looked at."""

from collections.abc import Sequence
from typing import Any

import msgspec

from roost.core.state import Meta
from roost.model.instance import Instance
from roost.model.node import Node
from roost.model.project import Pool
from roost.model.states import HOLDING
from roost.model.workload import Workload
from roost.ports.store import Change

TYPES: dict[str, type] = {
    "instance": Instance, "workload": Workload, "version": Workload, "node": Node, "pool": Pool, "meta": Meta,
}  # fmt: skip
DECODERS: dict[str, Any] = {kind: msgspec.msgpack.Decoder(type) for kind, type in TYPES.items()}


class Records:
    """The disk as objects. What a commit changed is there in both forms until the next one."""

    def __init__(self) -> None:
        self.now: dict[str, dict[str, Any]] = {kind: {} for kind in TYPES}
        self.before: dict[tuple[str, str], Any] = {}  # what the last commit changed -> what it was; None: new
        self.meta = Meta()
        self.meta_before = Meta()

    def committed(self, changes: Sequence[Change]) -> None:
        """Follow a commit."""
        self.before = {}
        self.meta_before = self.meta
        for kind, key, value in changes:
            known = self.now.get(kind)
            if known is None:
                continue
            self.before[kind, key] = known.get(key)
            if value is None:
                known.pop(key, None)
            else:
                known[key] = DECODERS[kind].decode(value)
                if kind == "meta":
                    self.meta = known[key]

    def changed(self, kind: str) -> list[tuple[str, Any, Any]]:
        """What the last commit wrote of a kind: key, before and now. What is gone is left out."""
        found = [(key, old, self.now[kind].get(key)) for (each, key), old in self.before.items() if each == kind]
        return [each for each in found if each[2] is not None]

    def stood(self, kind: str, key: str) -> tuple[Any, Any]:
        """A record before the last commit and after it."""
        now = self.now[kind].get(key)
        return self.before.get((kind, key), now), now

    def workload(self, key: str) -> Workload | None:
        """A workload, as it is now."""
        found: Workload | None = self.now["workload"].get(key)
        return found

    def spec_of(self, instance: Instance) -> Workload:
        """The workload as an instance runs it."""
        present: Workload = self.now["workload"][instance.workload]
        older: Workload = self.now["version"].get(f"{instance.workload}@{instance.version}", present)
        return present if instance.version == present.version else older

    def instances_of(self, key: str) -> list[Instance]:
        """All of a workload that have a record."""
        return [each for each in self.now["instance"].values() if each.workload == key]

    def holds(self, key: str, token: int) -> bool:
        """Whether an instance has its place with this very attempt."""
        instance = self.now["instance"].get(key)
        return instance is not None and instance.token == token and instance.state in HOLDING
