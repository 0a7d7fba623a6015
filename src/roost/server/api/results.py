"""Results: how a run ended, told by somebody else than its agent."""

from typing import Annotated, Any

import msgspec
from litestar import Request, post
from litestar.params import FromPath

from roost.model.events import Posted
from roost.model.limits import TEXT_LENGTH_MAX
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of, find, veil_of
from roost.server.api.errors import refusals
from roost.server.views import InstanceView, instance_detail, instance_view

TOKEN_MAX = (1 << 53) - 1  # exact in JSON, and more than a cluster gives away
CODE_MAX = 255  # what a process can exit with


class ResultBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an attempt ended. Its token is shown with its instance; an older one changes nothing."""

    token: Annotated[int, msgspec.Meta(ge=1, le=TOKEN_MAX)]
    code: Annotated[int, msgspec.Meta(ge=0, le=CODE_MAX)]
    cause: Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)] = ""


@post(
    "/v1/workloads/{project:str}/{name:str}/instances/{index:int}/result",
    operation_id="post_result",
    operation_class=taking(ResultBody),
    status_code=200,
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def post_result(
    request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str], index: FromPath[int]
) -> InstanceView:
    """End the attempt with this token as if its agent had told this exit code; what still runs of it is stopped."""
    body = await read_fields(request, ResultBody, required=True)
    engine = doors_of(request).engine
    workload = await find(doors_of(request), project, name)
    instance_detail(engine.state, workload, index)  # whether there is such an instance
    known = engine.state.instances.get(f"{workload.key}.{index}")
    last = instance_view(known) if known is not None else None
    cause = body.cause if body.cause.isprintable() else ascii(body.cause)[1:-1]
    await ask(request, lambda number: Posted(number, workload.key, index, body.token, body.code, cause))
    after = engine.state.instances.get(f"{workload.key}.{index}")
    if after is not None:
        return veil_of(request).instance(instance_view(after))
    assert last is not None
    return msgspec.structs.replace(last, state="failed" if body.code else "succeeded", exit_code=body.code)
