"""Routes: the application out of its handlers."""

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from roost.model.errors import RoostError
from roost.server.api import changes, health, instances, logs, nodes, workloads
from roost.server.api.bodies import BODY_BYTES_MAX
from roost.server.api.doors import Doors
from roost.server.api.errors import answer_error
from roost.server.api.schema import schema_config

HANDLERS = [
    workloads.submit,
    workloads.submit_batch,
    workloads.list_workloads,
    workloads.get_workload,
    workloads.get_why,
    workloads.cancel,
    workloads.retry,
    instances.list_instances,
    instances.get_instance,
    logs.read_log,
    logs.follow_log,
    nodes.list_nodes,
    nodes.get_node,
    nodes.drain,
    nodes.resume,
    nodes.remove,
    changes.changes,
    health.status,
    health.metrics,
    health.livez,
    health.readyz,
]


def make_api(doors: Doors) -> Litestar:
    """The API for these doors. It checks no token: see auth.py."""
    return Litestar(
        HANDLERS,
        state=State({"doors": doors}),
        exception_handlers={RoostError: answer_error, HTTPException: answer_error, Exception: answer_error},
        request_max_body_size=BODY_BYTES_MAX,
        openapi_config=schema_config(),
        logging_config=None,
        debug=False,
    )
