"""etcd client: transactions, ranges and watches on grpc.aio, over several members, any of which may go away.

One channel per member and our own choice among them: host names, addresses and certificates work alike, and a member
that dies costs the calls under way one more try elsewhere. Every call has a deadline; a watch goes on after the last
event it has handed out, never after a revision that a header merely mentions.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
from grpc.aio import AioRpcError

from roost.ports.store import Behind, StoreError, Unavailable, unavailable
from roost.stores.etcd.errors import UNSENT, Compacted, NoAnswer, TooLarge, Verdict, judge
from roost.stores.etcd.url import EtcdPlace, Tls
from roost.wire import etcd_pb2 as pb
from roost.wire import etcd_pb2_grpc as services

# A new leader of etcd is chosen within 1 to 2 s of the old one's death; a member that takes longer than this is not
# asked again at once.
ATTEMPT_S = 3.0

# Long enough for one member's death, an election and a second try; short enough that a caller learns of a real outage.
PATIENCE_S = 10.0

# How long a watch tries to go on before its reader gets an error. A restart of all members takes some seconds.
WATCH_PATIENCE_S = 60.0

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 0.5

MESSAGE_BYTES_MAX = 64 << 20  # pages aim at 4 MiB; one page of the largest values there are is below this

OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # etcd closes connections that ask more often than every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # without it (60 s) gRPC waits for a ping of its own kind before it asks
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
]

# Without it a member that is cut off from the others would hold calls and watches instead of refusing them.
REQUIRE_LEADER = ("hasleader", "true")

T = TypeVar("T")

# The task in which grpc.aio waits for the end of a stream. Should it get another name, an event loop that is closed at
# the very moment after a store may complain, and nothing else.
STATUS_TASK = "_handle_status_once_received"


class EtcdAnswer(NamedTuple, Generic[T]):
    """`repeated`: it may be that an earlier try arrived and its answer was lost."""

    response: T
    repeated: bool


class EtcdClient:
    """For one event loop; connects on first use."""

    def __init__(self, place: EtcdPlace, patience_s: float = PATIENCE_S) -> None:
        self._place, self._patience_s = place, patience_s
        self._endpoints = place.endpoints
        self._links: list[_Link] = []
        self._current = 0
        self._token = ""
        self._watches: set[Any] = set()
        self._ending = asyncio.Event()
        self.closed = False

    async def txn(self, request: pb.TxnRequest, patience_s: float = 0.0) -> EtcdAnswer[pb.TxnResponse]:
        return await self._call("txn", request, patience_s)

    async def range(self, request: pb.RangeRequest, patience_s: float = 0.0) -> pb.RangeResponse:
        """Raises Compacted when its revision is gone, TooLarge when a smaller `limit` would help."""
        response: pb.RangeResponse = (await self._call("range", request, patience_s)).response
        return response

    async def compact(self, revision: int) -> None:
        """Raises Compacted when another client was faster."""
        await self._call("compact", pb.CompactionRequest(revision=revision))

    async def watch(
        self, key: bytes, end: bytes, start: int, patience_s: float = WATCH_PATIENCE_S
    ) -> AsyncGenerator[list[pb.Event], None]:
        """Every event from etcd revision `start` on, in order, each once; the events of one revision together.

        Raises Compacted, Behind when etcd itself was set back, Unavailable when nothing was heard for so long.
        """
        create = pb.WatchCreateRequest(key=key, range_end=end, progress_notify=True, fragment=True)
        create.start_revision = start
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while True:
            number, watching, created = self._current, None, False
            try:
                metadata = await self._metadata()
                watching = self._link().watch(metadata=metadata)
                self._watches.add(watching)
                await self._step(watching, watching.write(pb.WatchRequest(create_request=create)), ATTEMPT_S)
                gathered: list[pb.Event] = []
                limit_s: float | None = ATTEMPT_S  # for the first answer; after it, keepalive notices a dead peer
                while (answer := await self._step(watching, watching.read(), limit_s)) is not grpc.aio.EOF:
                    _refuse(answer)
                    created, limit_s = True, None
                    gathered += answer.events
                    if answer.fragment:
                        continue
                    if gathered:
                        create.start_revision = gathered[-1].kv.mod_revision + 1
                        yield gathered
                        gathered = []
                    elif not answer.created:  # etcd says that there was nothing up to here
                        create.start_revision = max(create.start_revision, answer.header.revision + 1)
                trouble = f"etcd at {self._endpoints[number]} ended the watch"
            except AioRpcError as error:
                _, trouble = self._take(error, number, final=False)
            except (TimeoutError, asyncio.InvalidStateError):  # silence; the call has ended in between
                trouble = f"etcd at {self._endpoints[number]} does not answer"
            finally:
                if watching is not None:
                    await self._end(watching)
            if created:
                heard_at = loop.time()
            if loop.time() - heard_at > patience_s:
                raise unavailable(f"etcd could not be watched for {patience_s:.0f} s: {trouble}")
            self._turn(number)
            await asyncio.sleep(PAUSE_FIRST_S)
            await self._not_set_back(key, create.start_revision, patience_s)

    async def close(self) -> None:
        self.closed = True
        self._ending.set()
        for watching in list(self._watches):
            await self._end(watching)
        for link in self._links:
            await link.channel.close()

    async def _call(self, name: str, request: Any, patience_s: float = 0.0) -> EtcdAnswer[Any]:
        """Ask one member after the other, each at least once, until one answers or the patience (by default the
        client's own) ends."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + (patience_s or self._patience_s)
        pause, tries, repeated, renewed = PAUSE_FIRST_S, 0, False, False
        while True:
            number = self._current
            try:
                method = getattr(self._link(), name)
                response = await method(request, timeout=ATTEMPT_S, metadata=await self._metadata())
                return EtcdAnswer(response, repeated)
            except AioRpcError as error:
                verdict, trouble = self._take(error, number, final=renewed, repeated=repeated)
                renewed = renewed or verdict is Verdict.TOKEN  # once only
                repeated = repeated or UNSENT not in (error.details() or "")
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self.closed and (task is None or not task.cancelling()):
                    raise unavailable("the store is closed") from None  # closing a channel cancels its calls
                raise
            self._turn(number)
            tries += 1
            if loop.time() > ends and tries >= len(self._endpoints):
                raise _no_answer(Unavailable(trouble), repeated)
            if tries % len(self._endpoints) == 0:
                await asyncio.sleep(pause)
                pause = min(pause * 2, PAUSE_MAX_S)

    def _link(self) -> "_Link":
        if self.closed:
            raise unavailable("the store is closed")
        if not self._links:
            credentials = None if self._place.tls is None else _credentials(self._place.tls)
            self._links = [_Link(endpoint, credentials) for endpoint in self._endpoints]
        return self._links[self._current]

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        if not self._place.user:
            return (REQUIRE_LEADER,)
        if not self._token:
            request = pb.AuthenticateRequest(name=self._place.user, password=self._place.password)
            self._token = (await self._link().authenticate(request, timeout=ATTEMPT_S)).token
        return (REQUIRE_LEADER, ("token", self._token))

    def _take(self, error: AioRpcError, number: int, *, final: bool, repeated: bool = False) -> tuple[Verdict, str]:
        """The message of an error after which trying again may help; otherwise raise it."""
        verdict, text = judge(error.code(), error.details() or "", self._endpoints[number])
        if verdict is Verdict.COMPACTED:
            raise Compacted(Behind(text)) from error
        if verdict is Verdict.LARGE:
            raise TooLarge(Unavailable(text)) from error
        is_denied = verdict is Verdict.DENIED
        if verdict is Verdict.NO or is_denied or (verdict is Verdict.TOKEN and (final or not self._place.user)):
            raise _no_answer(Unavailable(text, is_denied), repeated) from error
        if verdict is Verdict.TOKEN:
            self._token = ""
        return verdict, text

    def _turn(self, number: int) -> None:
        """To the next member, unless another call has turned already."""
        if self._current == number:
            self._current = (number + 1) % len(self._endpoints)

    async def _step(self, watching: Any, work: Awaitable[T], limit_s: float | None) -> T:
        """A step of a watch. It also ends with the store, for closing a channel does not end every call on it."""
        step = asyncio.ensure_future(work)
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({step, ending}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if step.done() and not step.cancelled():
                return step.result()
        finally:
            ending.cancel()
            if not step.done():
                await self._end(watching)
                await asyncio.wait({step}, timeout=PAUSE_MAX_S)
            if not step.cancel() and not step.cancelled():
                step.exception()  # retrieved, so that asyncio does not log it
        if self.closed:
            raise unavailable("the store is closed")
        raise TimeoutError

    async def _end(self, watching: Any) -> None:
        """Cancel it, and wait until gRPC is done with it: what it still has to say must find the event loop open."""
        if watching not in self._watches:
            return
        self._watches.discard(watching)
        if not watching.done():
            # One of these is this call's, and is done when gRPC's own thread has ended it; others' go on.
            waiting = [task for task in asyncio.all_tasks() if STATUS_TASK in getattr(task.get_coro(), "__name__", "")]
            watching.cancel()
            if waiting:
                await asyncio.wait(waiting, timeout=PAUSE_MAX_S, return_when=asyncio.FIRST_COMPLETED)

    async def _not_set_back(self, key: bytes, following: int, patience_s: float) -> None:
        """etcd restored from an older snapshot counts its revisions again; a watch there would wait in silence."""
        now = (await self.range(pb.RangeRequest(key=key, count_only=True), patience_s)).header.revision
        if now < following - 1:
            raise StoreError(Behind(f"etcd is at revision {now} and was at {following - 1} before: it was set back"))


class _Link:
    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(endpoint, credentials, options=OPTIONS)
        kv = services.KVStub(self.channel)
        self.range, self.txn, self.compact = kv.Range, kv.Txn, kv.Compact
        self.watch = services.WatchStub(self.channel).Watch
        self.authenticate = services.AuthStub(self.channel).Authenticate


def _refuse(answer: pb.WatchResponse) -> None:
    if answer.compact_revision:
        raise Compacted(Behind(f"etcd has compacted everything before its revision {answer.compact_revision}"))
    if answer.canceled:
        verdict, text = judge(grpc.StatusCode.UNAVAILABLE, answer.cancel_reason, "watch")
        raise unavailable(text) if verdict in (Verdict.NO, Verdict.DENIED) else TimeoutError(answer.cancel_reason)


def _no_answer(failure: Unavailable, repeated: bool) -> StoreError:
    return NoAnswer(failure) if repeated else StoreError(failure)


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    def content(path: Path | None, what: str) -> bytes | None:
        try:
            return None if path is None else path.read_bytes()
        except OSError as error:
            raise unavailable(f"etcd: {what} cannot be read: {error}") from error

    if (tls.certificate is None) != (tls.key is None):
        raise unavailable("etcd: cert and key go together; one of them is missing")
    return grpc.ssl_channel_credentials(
        content(tls.ca, "ca"), content(tls.key, "key"), content(tls.certificate, "cert")
    )
