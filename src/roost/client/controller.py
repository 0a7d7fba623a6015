"""A controller: schedules work over gRPC and follows it, over as many connections and servers as it takes.

from roost.client.controller import Controller

with Controller.find() as controller:
    for frame in controller.run({"name": "hello", "command": "echo hello"}):
        print([stage.state for stage in frame.stages], frame.log.data)

Frames are the messages of proto/roost/controller/v1/controller.proto; docs/controller.md explains them.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from roost.client.config import Config, find_config
from roost.client.controller_errors import breaks_off, comes_back, error_of, is_unsent
from roost.client.errors import NotConfigured, Unreachable

if TYPE_CHECKING:
    from roost.wire import controller_pb2 as pb

SERVICE = "roost.v1.Controller"
ANSWER_S_MAX = 60.0  # for one answer: a batch of ten thousand takes some seconds
PATIENCE_S = 60.0  # how long all servers may be away, before whoever follows gives up
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

Document = Mapping[str, Any] | str


class Controller:
    """Speaks to one of some servers. Any of them will do; may be used by several threads.

    Methods raise ApiError when the server says no, Unreachable when there is none.
    """

    def __init__(
        self, addresses: str, token: str, ca: str = "", *, tls: bool | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        """`addresses` is HOST:PORT, several with commas between; `ca` is PEM, and there is TLS where it is given."""
        self._addresses = [each.strip() for each in addresses.split(",") if each.strip()]
        if not self._addresses:
            raise NotConfigured("no address of a controller's door: `roost status` shows it")
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
        from roost.client.client import Client  # noqa: PLC0415  (only to find out)

        found = config or find_config()
        with Client(*found) as client:
            addresses = ",".join(client.status().controllers)
        if not addresses:
            raise NotConfigured("this server does not listen to controllers", "start it without --no-controllers")
        return cls(addresses, found.token, found.ca, tls=found.url.startswith("https"), **more)

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection; streams end."""
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # asked once

    def schedule(self, *documents: Document, apply: bool = False) -> "list[pb.Workload]":
        """Take in workloads, all or none. With `apply` what is there already is changed where it differs."""
        from roost.wire import controller_pb2 as pb  # noqa: PLC0415  (where somebody speaks)

        request = pb.ScheduleRequest(documents=[_text(each) for each in documents], apply=apply)
        return list(self._ask("Schedule", request, pb.ScheduleReply, again=apply).workloads)

    def update(self, document: Document) -> "pb.Workload":
        """Change a workload that is there."""
        from roost.wire import controller_pb2 as pb  # noqa: PLC0415

        reply: pb.Workload = self._ask("Update", pb.UpdateRequest(document=_text(document)), pb.Workload)
        return reply

    def unschedule(self, project: str, name: str, index: int | None = None) -> "pb.Workload":
        """Stop a workload or one instance; twice is fine."""
        from roost.wire import controller_pb2 as pb  # noqa: PLC0415

        request = pb.UnscheduleRequest(project=project, name=name, index=index)
        reply: pb.Workload = self._ask("Unschedule", request, pb.Workload)
        return reply

    def get(self, project: str, name: str, index: int | None = None) -> "pb.GetReply":
        """A workload, and its first instances or one with its token and story."""
        from roost.wire import controller_pb2 as pb  # noqa: PLC0415

        reply: pb.GetReply = self._ask("Get", pb.GetRequest(project=project, name=name, index=index), pb.GetReply)
        return reply

    def workloads(self, *, project: str = "", state: str = "") -> "Iterator[pb.Workload]":
        """Workloads, newest first."""
        from roost.wire import controller_pb2 as pb  # noqa: PLC0415

        after = ""
        while True:
            page = self._ask("List", pb.ListRequest(project=project, state=state, after=after), pb.ListReply)
            yield from page.workloads
            after = page.next
            if not after:
                return

    # followed

    def run(
        self, document: Document, *, attach: bool = False, position: "pb.Position | None" = None
    ) -> "Iterator[pb.RunFrame]":
        """Schedule an action and follow it to its end; the last frame has the `result`.

        With `attach`, one of that name that is there already is followed instead, from `position` on: that of the last
        frame that was dealt with. A connection that breaks is made anew, and nothing is told twice.
        """
        from roost.wire import controller_pb2 as pb  # noqa: PLC0415

        request = pb.RunRequest(document=_text(document), attach=attach, position=position)

        def took(frame: pb.RunFrame) -> None:
            request.position.CopyFrom(frame.position)

        def again() -> None:
            request.attach = True  # it may have been taken in

        yield from self._follow("Run", request, pb.RunFrame, took, again)

    def attach(
        self, project: str, name: str, index: int = 0, position: "pb.Position | None" = None
    ) -> "Iterator[pb.RunFrame]":
        """Follow an action that is there already."""
        from roost.wire import controller_pb2 as pb  # noqa: PLC0415

        request = pb.AttachRequest(project=project, name=name, index=index, position=position)

        def took(frame: pb.RunFrame) -> None:
            request.position.CopyFrom(frame.position)

        yield from self._follow("Attach", request, pb.RunFrame, took)

    def watch(self, since: str = "", **wanted: Any) -> "Iterator[pb.WatchFrame]":
        """Everything, or what came after `since` (the `mark` of a frame); then every change, for ever.

        `wanted`: kinds, project, workload, states, interval_ms, metrics_ms, once. A frame with `reset` says that all
        that is known is to be forgotten; this may also happen after a connection has been made anew.
        """
        from roost.wire import controller_pb2 as pb  # noqa: PLC0415

        request = pb.WatchRequest(since=since, **wanted)

        def took(frame: pb.WatchFrame) -> None:
            request.since = frame.mark or request.since

        yield from self._follow("Watch", request, pb.WatchFrame, took)

    # how

    def _ask(self, method: str, request: Any, kind: Any, *, again: bool = True) -> Any:
        """The answer to a call. One that broke off is made again, unless it might then have been made twice."""
        import grpc  # noqa: PLC0415  (heavy: only where somebody speaks)

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
                if not again and breaks_off(error) and not is_unsent(error):
                    words = "the connection broke: whether this was done is not known"
                    raise Unreachable(words, "look with get() before you ask again") from None
                self._leave(channel)
                tries.failed(error_of(error))

    def _follow(
        self,
        method: str,
        request: Any,
        kind: Any,
        took: Callable[[Any], None],
        again: Callable[[], None] | None = None,
    ) -> Iterator[Any]:
        import grpc  # noqa: PLC0415

        tries = _Tries(self._patience_s)
        while True:
            channel = self._current()
            call = channel.unary_stream(f"/{SERVICE}/{method}")(request.SerializeToString(), metadata=self._metadata)
            try:
                for data in call:
                    frame = kind.FromString(data)
                    tries.worked()
                    yield frame
                    took(frame)  # only what was dealt with
                return
            except grpc.RpcError as error:
                if self._closed:
                    return
                if not comes_back(error):
                    raise error_of(error) from None
                if error_of(error).code != "slow_reader":
                    self._leave(channel)
                tries.failed(error_of(error))
                if again is not None:
                    again()
            finally:
                call.cancel()

    def _current(self) -> Any:
        """The channel that is used now; it connects when somebody speaks."""
        with self._lock:
            if self._closed:
                raise Unreachable("this controller was closed")
            self._channel = self._channel or self._open(self._addresses[0])
            return self._channel

    def _open(self, address: str) -> Any:
        import grpc  # noqa: PLC0415

        if not self._tls:
            return grpc.insecure_channel(address, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._ca.encode() or None)
        return grpc.secure_channel(address, credentials, options=OPTIONS)

    def _leave(self, channel: Any) -> None:
        """Try the next server. Whoever else still uses this channel goes on, until it breaks there, too."""
        with self._lock:
            if self._channel is channel:
                self._channel = None
                self._addresses.append(self._addresses.pop(0))


class _Tries:
    """How long it has not worked, and how long to wait before the next try."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.worked()

    def worked(self) -> None:
        self._since = 0.0
        self._pause_s = PAUSE_S_MIN

    def failed(self, error: Exception) -> None:
        """Wait a little; raises the error when it has been too long."""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > self._patience_s:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)


def _text(document: Document) -> str:
    return document if isinstance(document, str) else json.dumps(document)
