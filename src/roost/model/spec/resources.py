"""The `resources` of a document: amounts as integers, and names that are meant."""

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.project import FILE_BYTES, FILES
from roost.model.spec.names import check_name
from roost.model.spec.placement import between
from roost.model.spec.problems import check_each
from roost.model.spec.units import Quantity, byte_count, countable, cpu_milli, gpu_milli

GPU = 1_000  # thousandths in a whole device
LIKE_OURS = {
    "cpu": "cpu", "cpus": "cpu", "core": "cpu", "cores": "cpu", "vcpu": "cpu", "vcpus": "cpu",
    "memory": "memory", "mem": "memory", "ram": "memory", "memmory": "memory", "memroy": "memory",
    "disk": "disk", "disks": "disk", "storage": "disk", "gpu": "gpu", "gpus": "gpu",
}  # fmt: skip


def resources_of(raw: dict[str, int | float | str], path: str) -> tuple[tuple[str, int], ...]:
    """What an instance needs; one core by default. Zeros are left out, so equal asks are equal."""
    if not raw:
        return (("cpu", 1_000),)
    between(len(raw), 0, limits.RESOURCE_KINDS_MAX, path, "kinds of resources")
    amounts = check_each(_amount, [(path, item) for item in raw.items()])
    return tuple(sorted((name, amount) for name, amount in amounts if amount))


def _amount(item: tuple[str, Quantity], path: str) -> tuple[str, int]:
    name, value = item
    check_resource_name(name, f"{path}.{name:.60}")
    return name, read_resource(name, value, f"{path}.{name:.60}")


def check_resource_name(name: str, path: str) -> None:
    """Refuse a name that looks like a misspelt resource of Roost: it would be a resource that no node has."""
    if name in (FILES, FILE_BYTES):
        raise Invalid(path, "this bounds the inputs and outputs of a project in its quota; nodes do not offer it")
    known = LIKE_OURS.get(name.lower())
    if known is not None and known != name:
        raise Invalid(path, f"did you mean `{known}`? A resource of your own needs a name that is less like it")


def read_resource(name: str, value: Quantity, path: str) -> int:
    """One resource as an integer: milli-cores, bytes, thousandths of a gpu, or a count for any other name."""
    if name == "cpu":
        return cpu_milli(value, path)
    if name in ("memory", "disk", FILE_BYTES):
        return byte_count(value, path)
    if name == "gpu":
        return gpu_milli(value, path)
    check_name(name, path)
    return countable(value, path)


def devices_of(milli: int, path: str) -> tuple[int, int]:
    if milli >= GPU and milli % GPU:
        raise Invalid(path, "ask for whole devices, or for a share of one: 2 or 0.5, not 1.5")
    between(milli // GPU, 0, limits.GPUS_MAX, path, "devices")
    return (min(milli, GPU), max(1, milli // GPU)) if milli else (0, 0)
