"""Which instance is meant where only its workload is named."""

from roost.client.namespace import Namespace, path_of
from roost.schema.work import InstancePage

RUNNING_SHOWN_MAX = 10  # indexes in a message


def running_index(calls: Namespace, project: str, name: str) -> int:
    """The only running instance; the first one if none runs. Raises ValueError if there are several."""
    path = path_of("/v1/workloads/{}/{}/instances", project, name)
    found = calls._items(path, InstancePage, {"state": "running"}, RUNNING_SHOWN_MAX + 1)
    if len(found) > 1:
        listed = [f"{name}.{view.index}" for view in found[:RUNNING_SHOWN_MAX]]
        more = ", ..." if len(found) > RUNNING_SHOWN_MAX else ""
        raise ValueError(f"several instances run: {', '.join(listed)}{more}; name one of them")
    return found[0].index if found else 0
