"""What a controller asks for: requests decoded, operations performed, answers encoded.

Most calls are a row of CALLS: the message, the operation, its arguments, and the reply, whose fields have the names of
the REST API. The others are functions.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec
from google.protobuf.message import Message

from roost.model.errors import Invalid, TooMuch
from roost.model.states import NodeStatus, WorkloadState
from roost.schema.access.enrolment import Inviting
from roost.schema.nodes import Draining, NodeDetail, NodePage
from roost.schema.work import Chosen, SubmittedView, WorkloadPage
from roost.server.auth.principal import Principal
from roost.server.controller.encode import detail_message, instance_message, message_of, workload_message
from roost.server.operations.context import AsOf, Call
from roost.server.operations.dispatch import Dispatcher
from roost.server.operations.fleet import join, nodes
from roost.server.operations.parameters import PAGE_MAX
from roost.server.operations.paths import renamed_paths
from roost.server.operations.work import events, history, instances, pipelines, workloads
from roost.server.operations.work.documents import BATCH_MAX, BODY_BYTES_MAX, Documents
from roost.wire import controller_pb2 as pb

NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)
PAGE = 100
STATES = tuple(WorkloadState)

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Caller(NamedTuple):
    dispatcher: Dispatcher
    principal: Principal

    async def perform(
        self, operation: Callable[Concatenate[Call, P], Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs
    ) -> Answer:
        return await self.dispatcher.perform(self.principal, operation, *args, **kwargs)


class RpcCall(NamedTuple):
    takes: type[Message]
    answers: Callable[[Caller, Any], Awaitable[Message]]


def performing(
    takes: type[Message],
    operation: Callable[..., Awaitable[Any]],
    arguments: Callable[[Any], tuple[Any, ...]],
    reply: type[Message] | Callable[[Any], Message],
) -> RpcCall:
    """A method that performs one operation. `reply`: a message with the fields of the answer, or how to make one."""

    async def answer(caller: Caller, request: Any) -> Message:
        answered = await caller.perform(operation, *arguments(request))
        return message_of(answered, reply) if isinstance(reply, type) else reply(answered)

    return RpcCall(takes, answer)


async def schedule(caller: Caller, request: pb.ScheduleRequest) -> pb.ScheduleReply:
    documents = documents_of(request.documents)
    if len(request.documents) == 1:
        made = [await submit_one(caller, request.documents[0], "documents[0]", apply=request.apply)]
    else:
        with renamed_paths(lambda path: f"documents{path}" if path.startswith("[") else path.replace("$", "documents")):
            made = (await caller.perform(workloads.submit_batch, documents, request.apply)).items
    return pb.ScheduleReply(workloads=[workload_message(view, view.result) for view in made])


async def update(caller: Caller, request: pb.UpdateRequest) -> pb.Workload:
    """Change a live workload, and create none. The leader checks that it lives, in the same step as the change."""
    view = await submit_one(caller, request.document, "document", must_exist=True)
    return workload_message(view, view.result)


async def get(caller: Caller, request: pb.GetRequest) -> pb.GetReply:
    project, name = _named(request)
    detail = (await caller.perform(workloads.get_workload, project, name)).view
    reply = pb.GetReply(workload=workload_message(detail), document=msgspec.json.encode(detail.document).decode())
    if request.HasField("index"):
        one = await caller.perform(instances.get_instance, project, name, request.index)
        reply.instances.append(detail_message(one.view))
    else:
        page = await caller.perform(instances.list_instances, project, name)
        reply.instances.extend(instance_message(view) for view in page.view.items)
    return reply


async def start_pipeline(caller: Caller, request: pb.StartPipelineRequest) -> pb.StartPipelineReply:
    body = {
        "pipeline": msgspec.Raw(request.pipeline.encode() or b"null"),
        "variables": dict(request.variables),
        "only": list(request.only),
        "retention": request.retention,
        "run": request.run,
    }
    text = msgspec.json.encode(body)
    if len(text) > BODY_BYTES_MAX:
        raise TooMuch(f"a pipeline may have {BODY_BYTES_MAX:,} bytes", path="pipeline")
    with renamed_paths(lambda path: path.replace("$", "pipeline")):
        made = await caller.perform(pipelines.start_pipeline, Documents(text))
    actions = [
        pb.Action(
            action=item.action,
            needs=item.needs,
            services=item.services,
            workload=workload_message(item.workload, item.workload.result),
        )
        for item in made.actions
    ]
    return pb.StartPipelineReply(
        project=made.project, pipeline=made.pipeline, run=made.run, name=made.name, actions=actions
    )


def documents_of(documents: Sequence[str]) -> Documents:
    """Several documents as one list; the operation reads them."""
    if not 1 <= len(documents) <= BATCH_MAX:
        raise Invalid("documents", f"1 to {BATCH_MAX:,} workloads are taken at once, not {len(documents):,}")
    text = f"[{','.join(documents)}]".encode()
    if len(text) > BODY_BYTES_MAX:
        raise TooMuch(f"documents may have {BODY_BYTES_MAX:,} bytes together")
    return Documents(text)


def page_limit(limit: int, default: int) -> int:
    if limit > PAGE_MAX:
        raise Invalid("limit", f"this is 1 to {PAGE_MAX:,}, or 0; not {limit:,}")
    return limit or default


async def submit_one(
    caller: Caller, document: str, field: str, *, apply: bool = False, must_exist: bool = False, single: bool = False
) -> SubmittedView:
    """Submit one workload. An error names the field that the document came in."""
    with renamed_paths(lambda path: field if path == "$" else f"{field}.{path}" if path else ""):
        documents = Documents(document.encode(), one_instance=single)
        return await caller.perform(workloads.submit, documents, apply, must_exist)


def check_names(project: str, name: str, field: str = "name") -> None:
    for path, text in (("project", project), (field, name)):
        if not NAME.fullmatch(text):
            raise Invalid(path, "nothing can have this name" if text else "this is needed")


def _one_of(known: Sequence[str], value: str, field: str) -> Any:
    if value and value not in known:
        raise Invalid(field, f"there are {', '.join(sorted(known))}; not {value!r:.60}")
    return value or None


def _index(request: Any) -> int | None:
    return request.index if request.HasField("index") else None


def _named(request: Any) -> tuple[str, str]:
    check_names(request.project, request.name)
    return request.project, request.name


def _inviting(request: pb.CreateJoinTokenRequest) -> Inviting:
    uses: int | str = "unlimited" if request.unlimited else request.uses if request.HasField("uses") else 1
    return Inviting(request.pool, uses, request.expires or None)


def _listed(request: pb.ListRequest) -> tuple[Any, ...]:
    state = _one_of(STATES, request.state, "state")
    return request.project, "", state, "", page_limit(request.limit, PAGE), request.after


def _nodes_listed(request: pb.ListNodesRequest) -> tuple[Any, ...]:
    status = _one_of(tuple(NodeStatus), request.status, "status")
    return status, page_limit(request.limit, PAGE_MAX), request.after


def _finished(request: pb.HistoryRequest) -> tuple[Any, ...]:
    state, limit = _one_of(STATES, request.state, "state"), page_limit(request.limit, PAGE)
    return request.project, request.name, state, request.since, request.until, limit, request.after


def _happened(request: pb.EventsRequest) -> tuple[Any, ...]:
    return (
        request.project, request.workload, _index(request), request.node, request.kind, request.what,
        request.since, request.until, page_limit(request.limit, PAGE), request.after,
    )  # fmt: skip


def _draining(request: pb.DrainRequest) -> tuple[str, Draining]:
    return request.name, Draining(request.deadline or None)


def _list_reply(found: AsOf[WorkloadPage]) -> pb.ListReply:
    return pb.ListReply(workloads=map(workload_message, found.view.items), next=found.view.next or "")


def _nodes_reply(found: AsOf[NodePage]) -> pb.ListNodesReply:
    return pb.ListNodesReply(nodes=[message_of(view, pb.Node) for view in found.view.items], next=found.view.next or "")


def _node_reply(found: AsOf[NodeDetail]) -> pb.GetNodeReply:
    return pb.GetNodeReply(node=message_of(found.view, pb.Node), instances=map(instance_message, found.view.instances))


CALLS = {
    "Schedule": RpcCall(pb.ScheduleRequest, schedule),
    "Update": RpcCall(pb.UpdateRequest, update),
    "Unschedule": performing(
        pb.UnscheduleRequest, workloads.cancel, lambda asked: (*_named(asked), Chosen(_index(asked))), workload_message
    ),
    "Approve": performing(pb.ApproveRequest, workloads.approve, _named, workload_message),
    "Get": RpcCall(pb.GetRequest, get),
    "List": performing(pb.ListRequest, workloads.list_workloads, _listed, _list_reply),
    "StartPipeline": RpcCall(pb.StartPipelineRequest, start_pipeline),
    "Why": performing(
        pb.WhyRequest, workloads.why, lambda asked: (*_named(asked), _index(asked), not asked.brief), pb.WhyReply
    ),
    "Plan": performing(pb.PlanRequest, workloads.plan, lambda asked: (documents_of(asked.documents),), pb.PlanReply),
    "ListNodes": performing(pb.ListNodesRequest, nodes.list_nodes, _nodes_listed, _nodes_reply),
    "GetNode": performing(pb.NodeRequest, nodes.get_node, lambda asked: (asked.name,), _node_reply),
    "Drain": performing(pb.DrainRequest, nodes.drain, _draining, pb.Node),
    "PreviewDrain": performing(pb.DrainRequest, nodes.preview_drain, _draining, pb.DrainPreview),
    "Cordon": performing(pb.NodeRequest, nodes.cordon, lambda asked: (asked.name,), pb.Node),
    "Uncordon": performing(pb.NodeRequest, nodes.uncordon, lambda asked: (asked.name,), pb.Node),
    "CreateJoinToken": performing(
        pb.CreateJoinTokenRequest, join.create_join_token, lambda asked: (_inviting(asked),), pb.CreateJoinTokenReply
    ),
    "ListJoinTokens": performing(pb.ListJoinTokensRequest, join.list_join_tokens, lambda _: (), pb.ListJoinTokensReply),
    "RevokeJoinToken": performing(
        pb.RevokeJoinTokenRequest, join.revoke_join_token, lambda asked: (asked.id,), pb.RevokeJoinTokenReply
    ),
    "History": performing(pb.HistoryRequest, history.history, _finished, pb.HistoryReply),
    "Events": performing(pb.EventsRequest, events.events, _happened, pb.EventsReply),
}
