"""What a controller asks for, put to our own API: the same checks, roles, words and entries in the audit log.

Nothing is decided here, and nothing is permitted here: a call becomes the request that the REST API knows, with whoever
asks in the place of its token. On a server that stands by the request goes to the leader, as all do.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlencode

import msgspec

from roost.model.errors import Invalid, RoostError
from roost.server.api.bodies import decode_json
from roost.server.api.instances import InstancePage
from roost.server.api.workloads import BATCH_MAX, Accepted, WorkloadPage
from roost.server.auth import App
from roost.server.auth_principal import Principal
from roost.server.controller_errors import Told, told_by_api, told_of
from roost.server.controller_views import detail_message, instance_message, workload_message
from roost.server.forward import answer
from roost.server.views import InstanceDetail, WorkloadDetail, WorkloadView
from roost.wire import controller_pb2 as pb
from roost.wire import servers_pb2

ANSWER_BYTES_MAX = 32 << 20  # a batch of ten thousand, each told in a kilobyte or three
NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)  # nothing that means something else in a path
JSON = servers_pb2.Header(name=b"content-type", value=b"application/json")


class Api:
    """Our own API, asked in somebody's name."""

    def __init__(self, app: App, principal: Principal) -> None:
        self._app = app
        self._caller = servers_pb2.Caller(
            name=principal.name, where=principal.where, roles=principal.access.roles(), expires_ms=principal.expires_ms
        )

    async def call(self, method: str, path: str, body: bytes = b"", **query: Any) -> bytes:
        """The answer to a request. Raises Told when it is a refusal."""
        data = bytearray()
        async for piece in self.stream(method, path, body, **query):
            data += piece
            assert len(data) <= ANSWER_BYTES_MAX, f"{method} {path} has no end"
        return bytes(data)

    async def stream(self, method: str, path: str, body: bytes = b"", **query: Any) -> AsyncGenerator[bytes, None]:
        """The same, in pieces as they come."""
        status, refusal = 0, bytearray()
        async with aclosing(answer(self._app, self._request(method, path, body, query))) as pieces:
            async for piece in pieces:
                status = piece.status or status
                if status >= 400:
                    refusal += piece.data
                elif piece.data:
                    yield piece.data
        if status >= 400:
            raise told_by_api(status, bytes(refusal))

    def _request(self, method: str, path: str, body: bytes, query: dict[str, Any]) -> servers_pb2.ForwardedRequest:
        told = urlencode({name: value for name, value in query.items() if value not in (None, "")}).encode()
        return servers_pb2.ForwardedRequest(
            method=method, path=path, query=told, headers=[JSON] if body else [], body=body, caller=self._caller
        )


async def schedule(api: Api, request: pb.ScheduleRequest) -> pb.ScheduleReply:
    """Take in workloads, all or none."""
    if not 1 <= len(request.documents) <= BATCH_MAX:
        words = f"1 to {BATCH_MAX:,} workloads are scheduled at once, not {len(request.documents):,}"
        raise told_of(Invalid("documents", words))
    body = b"[%s]" % b",".join(document_of(each, f"documents[{at}]") for at, each in enumerate(request.documents))
    many = len(request.documents) > 1
    field = "documents" if many else "documents[0]"
    accepted = await _submitted(api, body, apply=request.apply, field=field, many=many)
    return pb.ScheduleReply(workloads=[workload_message(view) for view in accepted.items])


async def update(api: Api, request: pb.UpdateRequest) -> pb.Workload:
    """Change what lives, and make nothing. Whether it does is found out where it is changed: in between it may end."""
    document = document_of(request.document, "document")
    accepted = await _submitted(api, b"[%s]" % document, field="document", must_exist=True)
    return workload_message(accepted.items[0])


async def unschedule(api: Api, request: pb.UnscheduleRequest) -> pb.Workload:
    """Stop a workload or one instance."""
    body = msgspec.json.encode({"index": request.index} if request.HasField("index") else {})
    data = await api.call("POST", f"{path_of(request.project, request.name)}/cancel", body)
    return workload_message(msgspec.json.decode(data, type=WorkloadView))


async def get(api: Api, request: pb.GetRequest) -> pb.GetReply:
    """A workload, and its first instances or one of them."""
    path = path_of(request.project, request.name)
    detail = msgspec.json.decode(await api.call("GET", path), type=WorkloadDetail)
    reply = pb.GetReply(workload=workload_message(detail), document=msgspec.json.encode(detail.document).decode())
    if request.HasField("index"):
        data = await api.call("GET", f"{path}/instances/{request.index}")
        reply.instances.append(detail_message(msgspec.json.decode(data, type=InstanceDetail)))
    else:
        page = msgspec.json.decode(await api.call("GET", f"{path}/instances"), type=InstancePage)
        reply.instances.extend(instance_message(view) for view in page.items)
    return reply


async def list_workloads(api: Api, request: pb.ListRequest) -> pb.ListReply:
    """A page of workloads."""
    data = await api.call(
        "GET", "/v1/workloads", limit=request.limit or None, project=request.project, state=request.state,
        after=request.after,
    )  # fmt: skip
    page = msgspec.json.decode(data, type=WorkloadPage)
    return pb.ListReply(workloads=[workload_message(view) for view in page.items], next=page.next or "")


async def submit_one(api: Api, document: bytes) -> WorkloadView:
    """Take in one workload that is new."""
    return (await _submitted(api, b"[%s]" % document, field="document")).items[0]


def document_of(text: str, field: str) -> bytes:
    """A document that is JSON, and one thing: what is put together from several must not become more of them."""
    try:
        if not isinstance(decode_json(text.encode()), dict):
            raise Invalid("", "a workload is an object")
    except RoostError as error:
        error.path = f"{field}.{error.path}" if error.path else field
        raise told_of(error) from None
    return text.encode()


def path_of(project: str, name: str, field: str = "name") -> str:
    """The path of a workload."""
    for path, text in (("project", project), (field, name)):
        if not NAME.fullmatch(text):
            raise told_of(Invalid(path, "nothing can have this name" if text else "this is needed"))
    return f"/v1/workloads/{project}/{name}"


async def _submitted(
    api: Api, body: bytes, *, field: str, apply: bool = False, must_exist: bool = False, many: bool = False
) -> Accepted:
    said = {"same_ok": "true" if apply else None, "must_exist": "true" if must_exist else None}
    try:
        data = await api.call("POST", "/v1/workloads/batch", body, **said)
    except Told as told:
        raise _renamed(told, field, many=many) from None
    return msgspec.json.decode(data, type=Accepted)


def _renamed(told: Told, field: str, *, many: bool) -> Told:
    """The API speaks of a list of documents; here they are in a field."""
    where, _, path = told.error.path.partition("]") if told.error.path.startswith("[") else ("", "", told.error.path)
    if not where and (many or not path):
        return told
    name = f"{field}{where}]" if many else field
    told.error = msgspec.structs.replace(told.error, path=f"{name}.{path.removeprefix('.')}")
    return told
