"""What a node offers beside processes: containers while an engine answers, virtual machines while it has QEMU."""

import msgspec

from roost.drivers.container.engine import ContainerEngine
from roost.drivers.qemu.host import MachineHost
from roost.model.records.node import Facts

CONTAINER, QEMU = "container", "qemu"  # drivers
ENGINE_LABELS, QEMU_LABELS = ("engine", "engine_version"), ("qemu",)


def with_containers(facts: Facts, engine: ContainerEngine | None) -> Facts:
    return _with(facts, CONTAINER, ENGINE_LABELS, engine.labels() if engine is not None else {})


def with_machines(facts: Facts, host: MachineHost) -> Facts:
    found = _with(facts, QEMU, QEMU_LABELS, host.labels())
    return msgspec.structs.replace(found, vm=host.offers())


def _with(facts: Facts, driver: str, names: tuple[str, ...], labels: dict[str, str]) -> Facts:
    """Without labels, the node does not have the driver."""
    others = tuple(name for name in facts.drivers if name != driver)
    kept = {name: value for name, value in facts.labels.items() if name not in names}
    return msgspec.structs.replace(facts, drivers=(*others, driver) if labels else others, labels=kept | labels)
