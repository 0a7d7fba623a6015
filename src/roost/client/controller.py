"""A controller: schedules work over gRPC and follows it, over as many connections and servers as it takes.

from roost.client.controller import Controller

with Controller.find() as controller:
    for frame in controller.run({"name": "hello", "command": "echo hello"}):
        print([stage.state for stage in frame.stages], frame.log.data)

Frames are the messages of proto/roost/controller/v1/controller.proto; docs/guides/controllers.md explains them.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from roost.client.client import Client
from roost.client.config import Config, find_config
from roost.client.errors import OUTCOME_UNKNOWN, ApiError, NotConfigured, Unreachable, may_send_again
from roost.wire import controller_pb2 as pb

SERVICE = "roost.controller.v1.Controller"
ANSWER_S_MAX = 60.0  # for one answer: a batch of ten thousand takes some seconds
PATIENCE_S = 60.0  # how long all servers may be away before a stream gives up
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 1.0
MESSAGE_BYTES_MAX = 64 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # without it a silent cut is not noticed, whatever keepalive says
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one try to connect may take
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.service_config_disable_resolution", 1),
)
#: The status of HTTP that the REST API would have answered with.
STATUSES = {
    "INVALID_ARGUMENT": 422, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404, "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409, "RESOURCE_EXHAUSTED": 413, "UNAVAILABLE": 503, "UNKNOWN": 503, "DEADLINE_EXCEEDED": 504,
}  # fmt: skip
SLOW = "slow_reader"

Document = Mapping[str, Any] | str
M = TypeVar("M", bound=Message)


class Controller:
    """Calls one of several servers, whichever answers; may be used by several threads.

    Methods raise ApiError when the server refuses, Unreachable when there is none.
    """

    def __init__(
        self, addresses: str, token: str, ca: str = "", *, tls: bool | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        """`addresses` is HOST:PORT, several with commas between; `ca` is PEM, and there is TLS where it is given."""
        self._addresses = [part.strip() for part in addresses.split(",") if part.strip()]
        if not self._addresses:
            raise NotConfigured("no address for controllers: `roost status` shows it")
        self._ca = ca
        self._tls = bool(ca) if tls is None else tls
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._channel: Any = None
        self._closed = False

    @classmethod
    def find(cls, config: Config | None = None, **more: Any) -> "Controller":
        """Of the server that the commands use: `$ROOST_CONFIG`, or `$ROOST_URL` and `$ROOST_TOKEN`."""
        found = config or find_config()
        with Client(*found) as client:
            status = client.status()
        addresses = ",".join(status.controllers)
        if not addresses:
            raise NotConfigured("this server does not listen to controllers", "start it without --no-controllers")
        return cls(addresses, found.token, found.ca, tls=status.controllers_tls, **more)

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def schedule(self, *documents: Document, apply: bool = False) -> list[pb.Workload]:
        """Submit workloads, all or none. With `apply` existing ones are changed where they differ."""
        request = pb.ScheduleRequest(documents=map(_text, documents), apply=apply)
        return list(self._ask("Schedule", request, pb.ScheduleReply, again=apply).workloads)

    def start_pipeline(self, pipeline: Document, **given: Any) -> pb.StartPipelineReply:
        """Run a pipeline, all of its actions or none. `given`: variables, only, retention, run."""
        request = pb.StartPipelineRequest(pipeline=_text(pipeline), **given)
        return self._ask("StartPipeline", request, pb.StartPipelineReply)

    def update(self, document: Document) -> pb.Workload:
        return self._ask("Update", pb.UpdateRequest(document=_text(document)), pb.Workload)

    def unschedule(self, project: str, name: str, index: int | None = None) -> pb.Workload:
        """Stop a workload or one instance; idempotent."""
        return self._ask("Unschedule", pb.UnscheduleRequest(project=project, name=name, index=index), pb.Workload)

    def approve(self, project: str, name: str) -> pb.Workload:
        """Let a workload start that waits for approval; idempotent."""
        return self._ask("Approve", pb.ApproveRequest(project=project, name=name), pb.Workload)

    def get(self, project: str, name: str, index: int | None = None) -> pb.GetReply:
        """A workload, and its first instances or one with its token and story."""
        return self._ask("Get", pb.GetRequest(project=project, name=name, index=index), pb.GetReply)

    def workloads(self, *, project: str = "", state: str = "") -> Iterator[pb.Workload]:
        return self._paged("List", pb.ListRequest(project=project, state=state), pb.ListReply, "workloads")

    def why(self, project: str, name: str, index: int | None = None, *, brief: bool = False) -> pb.WhyReply:
        """Why an instance is placed or pending. `brief`: without suggestions and estimated start."""
        return self._ask("Why", pb.WhyRequest(project=project, name=name, index=index, brief=brief), pb.WhyReply)

    def plan(self, *documents: Document) -> pb.PlanReply:
        """What scheduling workloads would do; nothing is done."""
        return self._ask("Plan", pb.PlanRequest(documents=map(_text, documents)), pb.PlanReply)

    def history(self, **wanted: Any) -> Iterator[pb.Finished]:
        """Finished workloads, newest first. `wanted`: project, name (how it begins), state, since, until."""
        return self._paged("History", pb.HistoryRequest(**wanted), pb.HistoryReply, "items")

    def events(self, **wanted: Any) -> Iterator[pb.Event]:
        """Events, newest first. `wanted`: project, workload, index, node, kind, what, since, until."""
        return self._paged("Events", pb.EventsRequest(**wanted), pb.EventsReply, "items")

    def nodes(self, *, status: str = "") -> Iterator[pb.Node]:
        return self._paged("ListNodes", pb.ListNodesRequest(status=status), pb.ListNodesReply, "nodes")

    def node(self, name: str) -> pb.GetNodeReply:
        return self._ask("GetNode", pb.NodeRequest(name=name), pb.GetNodeReply)

    def drain(self, name: str, deadline: str = "") -> pb.Node:
        """Drain a node. Jobs may finish, until the deadline if there is one (`10m`); `0` moves them at once."""
        return self._ask("Drain", pb.DrainRequest(name=name, deadline=deadline), pb.Node)

    def preview_drain(self, name: str, deadline: str = "") -> pb.DrainPreview:
        """Where everything on a node would go if it was drained now; nothing is done."""
        return self._ask("PreviewDrain", pb.DrainRequest(name=name, deadline=deadline), pb.DrainPreview)

    def cordon(self, name: str) -> pb.Node:
        """Cordon a node: no new work; running work stays."""
        return self._ask("Cordon", pb.NodeRequest(name=name), pb.Node)

    def uncordon(self, name: str) -> pb.Node:
        """Put a cordoned, drained or flaky node back into service."""
        return self._ask("Uncordon", pb.NodeRequest(name=name), pb.Node)

    def create_join_token(self, *, pool: str = "", uses: int | None = 1, expires: str = "") -> pb.CreateJoinTokenReply:
        """A token with which machines become nodes; `uses`: None is any number."""
        request = pb.CreateJoinTokenRequest(pool=pool, uses=uses, unlimited=uses is None, expires=expires)
        return self._ask("CreateJoinToken", request, pb.CreateJoinTokenReply, again=False)

    def join_tokens(self) -> list[pb.JoinToken]:
        """Join tokens that can still be used; never their secrets."""
        return list(self._ask("ListJoinTokens", pb.ListJoinTokensRequest(), pb.ListJoinTokensReply).items)

    def revoke_join_token(self, id: str) -> None:
        """Revoke a join token; nodes that joined with it stay."""
        self._ask("RevokeJoinToken", pb.RevokeJoinTokenRequest(id=id), pb.RevokeJoinTokenReply)

    def run(
        self, document: Document, *, attach: bool = False, position: pb.Position | None = None
    ) -> Iterator[pb.RunFrame]:
        """Schedule an action and follow it to its end; the last frame has the `result`.

        With `attach`, an existing one of that name is followed instead, from `position` on: that of the last frame
        that was processed. A broken connection is made again, and nothing is repeated.
        """
        request = pb.RunRequest(document=_text(document), attach=attach, position=position)

        def again() -> None:
            request.attach = True  # it may have been submitted

        yield from self._follow("Run", request, pb.RunFrame, _move, again)

    def attach(
        self, project: str, name: str, index: int = 0, position: pb.Position | None = None
    ) -> Iterator[pb.RunFrame]:
        request = pb.AttachRequest(project=project, name=name, index=index, position=position)
        yield from self._follow("Attach", request, pb.RunFrame, _move)

    def watch(self, since: str = "", **wanted: Any) -> Iterator[pb.WatchFrame]:
        """Everything, or the changes after `since` (the `mark` of a frame); then every change.

        `wanted`: kinds, project, workload, states, interval_ms, metrics_ms, once. After a frame with `reset` forget
        everything; this may also happen after a reconnect.
        """

        def took(request: pb.WatchRequest, frame: pb.WatchFrame) -> None:
            request.since = frame.mark or request.since

        yield from self._follow("Watch", pb.WatchRequest(since=since, **wanted), pb.WatchFrame, took)

    def _paged(self, method: str, request: Any, kind: Any, items: str) -> Iterator[Any]:
        while True:
            page = self._ask(method, request, kind)
            yield from getattr(page, items)
            request.after = page.next
            if not page.next:
                return

    def _ask(self, method: str, request: Message, kind: type[M], *, again: bool = True) -> M:
        """The answer to a call. A broken call is repeated, unless it may have been executed and is not idempotent."""
        tries = _Tries(self._patience_s)
        while True:
            channel = self._current()
            call = channel.unary_unary(f"/{SERVICE}/{method}")
            try:
                data = call(request.SerializeToString(), metadata=self._metadata, timeout=ANSWER_S_MAX)
                return kind.FromString(data)
            except grpc.RpcError as error:
                if not comes_back(error):
                    raise error_of(error) from None
                is_in_doubt = breaks_off(error) and not is_unsent(error)
                if is_in_doubt and not may_send_again(None, is_idempotent=again):
                    message = "the connection broke: whether this was done is not known"
                    raise Unreachable(message, "look with get() before you ask again") from None
                self._leave(channel)
                tries.failed(error_of(error))

    def _follow(
        self, method: str, request: Any, kind: Any, took: Callable[[Any, Any], None],
        again: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:  # fmt: skip
        """Frames over as many connections as it takes. `took` changes the request after a processed frame."""
        tries = _Tries(self._patience_s)
        while True:
            channel = self._current()
            call = channel.unary_stream(f"/{SERVICE}/{method}")(request.SerializeToString(), metadata=self._metadata)
            try:
                for data in call:
                    frame = kind.FromString(data)
                    tries.worked()
                    yield frame
                    took(request, frame)
                return
            except grpc.RpcError as error:
                if self._closed:
                    return
                if not comes_back(error):
                    raise error_of(error) from None
                if error_of(error).code != SLOW:
                    self._leave(channel)
                tries.failed(error_of(error))
                again()
            finally:
                call.cancel()

    def _current(self) -> Any:
        with self._lock:
            if self._closed:
                raise Unreachable("this controller was closed")
            if self._channel is None and self._tls:
                credentials = grpc.ssl_channel_credentials(self._ca.encode() or None)
                self._channel = grpc.secure_channel(self._addresses[0], credentials, options=OPTIONS)
            elif self._channel is None:
                self._channel = grpc.insecure_channel(self._addresses[0], options=OPTIONS)
            return self._channel

    def _leave(self, channel: Any) -> None:
        """Try the next server. Other users of this channel continue until it breaks."""
        with self._lock:
            if self._channel is channel:
                self._channel = None
                self._addresses.append(self._addresses.pop(0))


class _Tries:
    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.worked()

    def worked(self) -> None:
        self._since = 0.0
        self._pause_s = PAUSE_S_MIN

    def failed(self, error: Exception) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > self._patience_s:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)


def error_of(error: Any) -> ApiError:
    answer = _trailing(error)
    name, path = error.code().name, answer.get("roost-path", "")
    message = error.details() or name
    code = answer.get("roost-code", "unavailable" if comes_back(error) else name.lower())
    hint, params = answer.get("roost-hint", ""), json.loads(answer.get("roost-params", "{}"))
    return ApiError(STATUSES.get(name, 500), code, message.removeprefix(f"{path}: "), path, hint, params)


def comes_back(error: Any) -> bool:
    """Whether the same may work a moment later, or with another server."""
    answer = _trailing(error).get("roost-code")
    return error.code().name == "UNAVAILABLE" or answer in (SLOW, OUTCOME_UNKNOWN) or breaks_off(error)


def breaks_off(error: Any) -> bool:
    """Whether a connection broke, ours or one between servers, so that the outcome of the call is unknown."""
    answer = _trailing(error).get("roost-code")
    if answer is not None:
        return answer == OUTCOME_UNKNOWN
    name, message = error.code().name, error.details() or ""
    # What gRPC calls a connection that ends in the middle of something.
    is_cut = name in ("UNKNOWN", "INTERNAL") and ("RST_STREAM" in message or "Stream removed" in message)
    return is_cut or name in ("UNAVAILABLE", "CANCELLED")


def is_unsent(error: Any) -> bool:
    """Whether there was no connection at all, so that no server received the call."""
    if "roost-code" in _trailing(error):
        return False
    return error.code().name == "UNAVAILABLE" and "failed to connect" in (error.details() or "").lower()


def _trailing(error: Any) -> dict[str, str]:
    found = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    return {name: value for name, value in found or () if isinstance(value, str)}


def _move(request: pb.RunRequest | pb.AttachRequest, frame: pb.RunFrame) -> None:
    request.position.CopyFrom(frame.position)


def _text(document: Document) -> str:
    return document if isinstance(document, str) else json.dumps(document)
