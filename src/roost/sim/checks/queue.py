"""Limits of placement, checked on the disk: gangs start as a whole, quotas and reservations are kept."""

from roost.model.records.instance import Instance
from roost.model.records.project import INSTANCES
from roost.model.states import ALLOCATED, FINISHED
from roost.sim.checks.records import Records
from roost.sim.world.world import Wrong


def check_placements(disk: Records) -> None:
    placed = [new for _, new in disk.placed()]
    for project in {disk.now["workload"][instance.workload].project for instance in placed}:
        _within_quota(disk, project)
    for instance in placed:
        _not_reserved(disk, instance)
        _with_its_gang(disk, instance, placed)


def _within_quota(disk: Records, name: str) -> None:
    project = disk.now["project"].get(name)
    if project is None or project.borrow or project.counted:
        return
    allocated: dict[str, int] = {}
    for instance in disk.now["instance"].values():
        if instance.state not in ALLOCATED or instance.prefilled_behind:
            continue
        workload = disk.spec_of(instance)
        for resource, amount in (*workload.policy.ask.resources, (INSTANCES, 1)) if workload.project == name else ():
            allocated[resource] = allocated.get(resource, 0) + amount
    for resource, most in project.quota.items():
        if allocated.get(resource, 0) > most:
            raise Wrong(f"project {name} was given {allocated[resource]} {resource}, its quota is {most}")


def _not_reserved(disk: Records, instance: Instance) -> None:
    workload = disk.spec_of(instance)
    timeout_ms = workload.policy.timeout_ms
    for reservation in disk.now["reservation"].values():
        is_over = reservation.end_ms and reservation.end_ms <= instance.since_ms
        is_in_time = timeout_ms and instance.since_ms + timeout_ms <= reservation.start_ms
        is_other = instance.node in reservation.nodes and reservation.project != workload.project
        if is_other and not is_over and not is_in_time:
            raise Wrong(f"{instance.key} was placed on {instance.node}, which is reserved by {reservation.name}")


def _with_its_gang(disk: Records, instance: Instance, placed: list[Instance]) -> None:
    workload = disk.now["workload"][instance.workload]
    if not workload.policy.gang or workload.adopted:
        return
    with_it = {instance.key for instance in placed}
    for index in range(workload.count):
        key = f"{workload.key}.{index}"
        other = disk.now["instance"].get(key)
        is_over = workload.unstarted_end_state if other is None else other.state in FINISHED
        if key not in with_it and not is_over:
            raise Wrong(f"{instance.key} was placed without {key} of its gang ({other.state if other else 'new'})")
