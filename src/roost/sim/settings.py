"""What must never happen in the queue, seen from the disk: a gang in parts, a quota passed, a reservation not kept."""

from collections.abc import Mapping, Sequence

import msgspec

from roost.model.instance import Instance
from roost.model.project import INSTANCES, Project, Reservation
from roost.model.states import FINISHED, HOLDING
from roost.model.workload import Workload
from roost.ports.store import Change
from roost.sim.world import Wrong

_INSTANCE = msgspec.msgpack.Decoder(Instance)
_PROJECT = msgspec.msgpack.Decoder(Project)
_WORKLOAD = msgspec.msgpack.Decoder(Workload)
_RESERVATION = msgspec.msgpack.Decoder(Reservation)


class SettingsCheckers:
    """Look at every commit that places somebody."""

    def __init__(self, workloads: Mapping[str, Workload]) -> None:
        self._workloads = workloads
        self._instances: dict[str, Instance] = {}
        self._versions: dict[str, Workload] = {}
        self._projects: dict[str, Project] = {}
        self._reservations: dict[str, Reservation] = {}

    def forgotten(self) -> None:
        """The disk is empty again."""
        for known in (self._instances, self._projects, self._reservations, self._versions):
            known.clear()

    def committed(self, changes: Sequence[Change]) -> None:
        """What a commit placed is within what was set, before it or with it."""
        placed: list[Instance] = []
        for kind, key, value in changes:
            if kind == "instance":
                before = self._instances.get(key)
                instance = self._set(self._instances, key, value, _INSTANCE)
                if instance is not None and instance.state == "placed":
                    if before is None or before.token != instance.token:
                        placed.append(instance)
            elif kind == "version":
                self._set(self._versions, key, value, _WORKLOAD)
            elif kind == "project":
                self._set(self._projects, key, value, _PROJECT)
            elif kind == "reservation":
                self._set(self._reservations, key, value, _RESERVATION)
        for project in {self._workloads[each.workload].project for each in placed}:
            self._within_quota(project)
        for instance in placed:
            self._not_reserved(instance)
            self._with_its_gang(instance, placed)

    @staticmethod
    def _set(known: dict, key: str, value: bytes | None, decoder: msgspec.msgpack.Decoder) -> "Instance | None":  # type: ignore[type-arg]
        if value is None:
            known.pop(key, None)
            return None
        known[key] = decoder.decode(value)
        return known[key]  # type: ignore[no-any-return]

    def _spec_of(self, instance: Instance) -> Workload:
        """The workload as an instance runs it."""
        present = self._workloads[instance.workload]
        older = self._versions.get(f"{instance.workload}@{instance.version}", present)
        return present if instance.version == present.version else older

    def _within_quota(self, name: str) -> None:
        project = self._projects.get(name)
        if project is None or project.borrow or project.counted:
            return
        held: dict[str, int] = {}
        for instance in self._instances.values():
            workload = self._spec_of(instance)
            if instance.state in HOLDING and not instance.behind and workload.project == name:
                for resource, amount in (*workload.policy.ask.resources, (INSTANCES, 1)):
                    held[resource] = held.get(resource, 0) + amount
        for resource, most in project.quota.items():
            if held.get(resource, 0) > most:
                raise Wrong(f"project {name} was given {held[resource]} {resource}, its quota is {most}")

    def _not_reserved(self, instance: Instance) -> None:
        workload = self._spec_of(instance)
        timeout_ms = workload.policy.timeout_ms
        for each in self._reservations.values():
            over = each.end_ms and each.end_ms <= instance.since_ms
            in_time = timeout_ms and instance.since_ms + timeout_ms <= each.start_ms
            if instance.node in each.nodes and each.project != workload.project and not over and not in_time:
                raise Wrong(f"{instance.key} was placed on {instance.node}, which is reserved by {each.name}")

    def _with_its_gang(self, instance: Instance, placed: list[Instance]) -> None:
        workload = self._workloads[instance.workload]
        if not workload.policy.gang or workload.adopted:
            return
        with_it = {each.key for each in placed}
        for index in range(workload.count):
            key = f"{workload.key}.{index}"
            other = self._instances.get(key)
            over = workload.rest if other is None else other.state in FINISHED
            if key not in with_it and not over:
                raise Wrong(f"{instance.key} was placed without {key} of its gang ({other.state if other else 'new'})")
