"""Keys of workloads (PROJECT/NAME) and instances (PROJECT/NAME.INDEX), and addresses: made here and nowhere else.

A log is PROJECT/NAME/SERIAL/INDEX.ATTEMPT, and with a suffix that of a separate stderr.
"""

from typing import NewType

from roost.model.states import LogStream

STDERR_SUFFIX = ".stderr"

WorkloadKey = NewType("WorkloadKey", str)
InstanceKey = NewType("InstanceKey", str)


def workload_key(project: str, name: str) -> WorkloadKey:
    return WorkloadKey(f"{project}/{name}")


def split_workload_key(key: str) -> tuple[str, str]:
    """Project and name."""
    project, _, name = key.partition("/")
    return project, name


def instance_key(workload: str, index: int) -> InstanceKey:
    return InstanceKey(f"{workload}.{index}")


def log_name(workload: str, serial: int, index: int, attempt: int, stream: str = LogStream.STDOUT) -> str:
    suffix = STDERR_SUFFIX if stream == LogStream.STDERR else ""
    return f"{workload}/{serial}/{index}.{attempt}{suffix}"


def split_instance_key(key: str) -> tuple[WorkloadKey, int]:
    """The key of the workload, and the index."""
    workload, _, index = key.rpartition(".")
    return WorkloadKey(workload), int(index)


def host_and_port(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an address that has colons itself."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
