"""The link: the agent's stream to the server. Beats go out when something is due, answers go to the actor.

A beat costs more than what it holds, so news wait for each other. The first of them goes out at once; while they keep
coming, each waits a moment for others to share its beat, and the server decides about all of them at once.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import grpc

from roost.agent.actor import Action, Actor
from roost.agent.address import own_address
from roost.agent.identity import SERVER_NAME, Identity, Renewal, credentials_of
from roost.agent.identity import now_ms as wall_ms
from roost.agent.say import say
from roost.agent.whereabouts import Whereabouts
from roost.model.frames import Answer, Usage, Welcome
from roost.model.joining import Bundle
from roost.wire import agent_pb2 as pb
from roost.wire.codec import pack_agent, unpack_server

SERVICE = "/roost.agent.v1.Agents"
BEATS_PER_LEASE = 4
HOLD_MS = 2  # how long news wait for others
BUSY_MS = 50  # ... if the last ones are not longer ago than this
WELCOME_S_MAX = 10.0
WELCOME_S_MAX_MANY = 1.5  # where there are other servers: one that hangs must not cost us our lease
SILENCE_SHARE = 0.75  # of a lease without a word from the server: the stream is dead, whatever TCP says
SILENCE_SHARE_MANY = 0.4  # ... where there are others who may lead by now
WHO_S_MAX, WHO_EVERY_S = 1.0, 1.0  # asking the others, while ours does not know whether it still leads
USAGE_MS = 10_000
RETRY_S_MIN, RETRY_S_MAX = 0.03, 0.2  # a server that restarts is found again within a fraction of a lease
REFUSED_S = 5.0
NAME_TAKEN_S = 1.0  # the last one of our name may be on its way out
UNTOLD_TRIES = 15  # two seconds: `roost up` writes certificates for its nodes while they start
NAME_TAKEN_TRIES = 60  # then it is not on its way out

OPTIONS = (
    ("grpc.http2.bdp_probe", 0),  # a ping with every message costs both sides a third more
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 30),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # in truth: how long one attempt may take
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.ssl_target_name_override", SERVER_NAME),
    ("grpc.use_local_subchannel_pool", 1),  # a renewed certificate is shown on a connection of its own
)

REFUSALS = {
    grpc.StatusCode.UNAUTHENTICATED: "the server does not take our certificate",
    grpc.StatusCode.PERMISSION_DENIED: "the server refuses this agent",
    grpc.StatusCode.INVALID_ARGUMENT: "the server refuses this agent",
    grpc.StatusCode.UNIMPLEMENTED: "there is no Roost server at this address",
    grpc.StatusCode.ALREADY_EXISTS: "our name is taken",
}

Act = Callable[[Sequence[Action]], None]
Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


class Link:
    """One stream at a time, opened again whenever it breaks. Runs go on meanwhile."""

    def __init__(
        self, address: str, identity: Identity, actor: Actor, act: Act, welcomed: Callable[[], None],
        usage: Callable[[], Usage | None],
    ) -> None:  # fmt: skip
        self.address = ""  # where we are connected, or try to be
        self._places = Whereabouts(address)
        self._unsure = asyncio.Event()  # our server does not know whether it still leads
        self._identity = identity
        self._actor = actor
        self._is_located = bool(actor.facts.address)  # somebody has said where this machine is reached
        self._act = act
        self._welcomed = welcomed
        self._usage = usage
        self._channel: grpc.aio.Channel | None = None
        self._shown: Bundle | None = None  # on that channel
        self._stale: list[grpc.aio.Channel] = []  # with streams that began before a renewal
        self._said = ""  # what we last said about the connection
        self._tries = 0
        self._spoke_ms = 0
        self._told_ms = 0  # when we last had news
        self._heard_ms = 0
        self._beat_at_ms = 0  # when a sign of life is due
        self._usage_at_ms = 0
        self._unanswered = False
        self._planned_ms = 0
        self._waker: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._leaving = False  # every beat says so
        self._ending = False  # the next beat is the last
        self._over = asyncio.Event()  # no stream
        self._over.set()

    # for the service

    async def run(self) -> None:
        """Stay connected for ever."""
        renewing = asyncio.ensure_future(Renewal(self._identity, self._open_channel).run())
        try:
            while not self._ending:
                pause_s = await self._try()
                await asyncio.sleep(pause_s)
        finally:
            renewing.cancel()
            self._leave_channel()
            await self._close_stale()

    def nudge(self) -> None:
        """There may be something new to tell."""
        if self._waker is not None and not self._waker.done() and self._next_ms() < self._planned_ms:
            self._disarm()
            self._arm()

    def leave(self) -> None:
        """The node is going out of service: from the next beat on the server knows."""
        self._leaving = True

    async def goodbye(self) -> None:
        """Tell the rest and that we are gone, and wait until the server has let us go."""
        self._leaving = self._ending = True
        self._wake()
        await self._over.wait()

    def ship(self) -> Call:
        """A stream for logs. Raises ConnectionError while there is nobody to send them to."""
        try:
            bundle = self._certificate()
        except ValueError as error:
            raise ConnectionError(str(error)) from None
        if not self.address:
            raise ConnectionError("there is no server yet")
        channel = self._newest_channel(bundle)
        return channel.stream_stream(f"{SERVICE}/Ship")(wait_for_ready=True)

    # one stream

    async def _try(self) -> float:
        """One stream from hello to its end; returns how long to wait before the next."""
        try:
            bundle = self._certificate()
        except ValueError as error:
            self._tries += 1
            if self._tries > UNTOLD_TRIES or self._identity.exists():
                self._tell(str(error))
            return self._retry_s() if not self._identity.exists() else REFUSED_S
        self._go_to(self._places.next(bundle.servers))
        await self._close_stale()
        call = self._newest_channel(bundle).stream_stream(f"{SERVICE}/Connect")()
        self._over.clear()
        try:
            await self._session(call)
            code, words = grpc.StatusCode.OK, "the server ended the stream"
        except* (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError) as errors:
            code, words = await _reason(call, errors)
            if not self._places.knows_leader:
                self._places.refused(await _leader(call))
        finally:
            self._actor.parted()
            call.cancel()
            self._over.set()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # A task group that has errors of its own forgets, before Python 3.13, that it was cancelled.
            raise asyncio.CancelledError
        return self._pause_s(code, words)

    # who we are and to whom we speak

    def _certificate(self) -> Bundle:
        """Ours. Raises ValueError, in words, if there is none that a server would take."""
        bundle = self._identity.read()
        if bundle is None:
            raise ValueError(
                f"{self._identity.path} is not there: this machine has not joined; `roost agent --join TOKEN`"
            )
        if bundle.expires_ms <= wall_ms():
            when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(bundle.expires_ms / 1_000))
            raise ValueError(
                f"our certificate has ended ({when} UTC); a new join token is needed: `roost agent --join`"
            )
        if not self._places.all(bundle.servers):
            raise ValueError(f"{self._identity.path} names no server; say --server HOST:PORT")
        return bundle

    def _go_to(self, address: str) -> None:
        if address != self.address or self._channel is None:
            self.address = address
            self._leave_channel()

    def _newest_channel(self, bundle: Bundle) -> grpc.aio.Channel:
        """To where we are connected, showing this certificate. Streams of the one before go on."""
        if self._channel is None or bundle is not self._shown:
            self._leave_channel()
            self._channel, self._shown = self._open_channel(bundle), bundle
        return self._channel

    def _open_channel(self, bundle: Bundle) -> grpc.aio.Channel:
        address = self.address or self._places.all(bundle.servers)[0]
        return grpc.aio.secure_channel(address, credentials_of(bundle), options=OPTIONS)

    def _leave_channel(self) -> None:
        if self._channel is not None:
            self._stale.append(self._channel)
            self._channel = None

    async def _close_stale(self) -> None:
        stale, self._stale = self._stale, []
        for channel in stale:
            await channel.close()

    async def _session(self, call: Call) -> None:
        if not self._is_located:
            self._actor.located(await own_address(self.address))
        now = now_ms()
        async with asyncio.timeout(WELCOME_S_MAX_MANY if self._has_others() else WELCOME_S_MAX):
            try:
                await call.write(pack_agent(self._actor.hello(now)).SerializeToString())
                data = await call.read()
            except asyncio.CancelledError:
                self._places.silent(self.address)
                raise
        first = pb.ServerFrame.FromString(data) if data is not grpc.aio.EOF else pb.ServerFrame()
        frame = unpack_server(first)
        if not isinstance(frame, Welcome):
            raise ConnectionError("the server did not welcome us")
        self._places.taken_in(self.address, first.welcome.servers)
        self._identity.learn(first.welcome.servers)
        self._unsure.clear()
        self._spoke_ms = self._heard_ms = self._beat_at_ms = now
        self._unanswered = False
        self._tries = 0
        self._tell(f"connected to {self.address} as {self._actor.node}")
        self._act(self._actor.welcomed(frame, now_ms()))
        self._plan_beat(now)
        self._welcomed()
        async with asyncio.TaskGroup() as group:
            speaking = group.create_task(self._speak(call))
            looking = group.create_task(self._look_elsewhere())
            await self._listen(call)
            speaking.cancel()
            looking.cancel()

    async def _listen(self, call: Call) -> None:
        while (data := await call.read()) is not grpc.aio.EOF:
            packed = pb.ServerFrame.FromString(data)
            frame = unpack_server(packed)
            now = self._heard_ms = now_ms()
            if packed.answer.unsure:
                self._unsure.set()
            if isinstance(frame, Answer):
                if frame.echo_ms >= self._spoke_ms:
                    self._unanswered = False
                self._act(self._actor.answered(frame, now))
                self.nudge()

    async def _look_elsewhere(self) -> None:
        """While our server does not know whether it still leads, ask the others: one may lead by now."""
        while True:
            await self._unsure.wait()
            self._unsure.clear()
            bundle = self._identity.read()
            for address in self._places.all(bundle.servers) if bundle is not None else ():
                if address != self.address and bundle is not None and await _leads(address, bundle):
                    self._places.refused(address)
                    raise ConnectionError(f"the server at {address} leads by now")
            await asyncio.sleep(WHO_EVERY_S)

    def _silence_ms(self) -> int:
        """When a server that has not answered is not going to."""
        share = SILENCE_SHARE_MANY if self._has_others() else SILENCE_SHARE
        return self._heard_ms + int(self._actor.lease_ms * share)

    def _has_others(self) -> bool:
        bundle = self._identity.read()
        return bundle is not None and len(self._places.all(bundle.servers)) > 1

    async def _speak(self, call: Call) -> None:
        last = False
        while not last:
            await self._until_due()
            now, last = now_ms(), self._ending
            if self._unanswered and now >= self._silence_ms():
                self._places.silent(self.address)
                raise ConnectionError("the server has stopped answering")
            again = now >= self._beat_at_ms
            usage = None
            if now >= self._usage_at_ms:
                usage, self._usage_at_ms = self._usage(), now + USAGE_MS
            beat = self._actor.beat(now, usage, again=again or last, leaving=self._leaving)
            self._spoke_ms, self._unanswered = now, True
            if beat.reports:
                self._told_ms = now
            self._plan_beat(now)
            await call.write(pack_agent(beat).SerializeToString())
        await call.done_writing()

    async def _until_due(self) -> None:
        while not self._ending and self._next_ms() > now_ms():
            self._waker = asyncio.get_running_loop().create_future()
            self._arm()
            try:
                await self._waker
            finally:
                self._disarm()

    def _arm(self) -> None:
        self._planned_ms = self._next_ms()
        delay_s = max(0, self._planned_ms - now_ms()) / 1_000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def _next_ms(self) -> int:
        """When to speak next: a sign of life, or news, but not too soon after the last word."""
        due = self._actor.next_due()
        if due is None and not self._actor.lacking:
            return min(self._beat_at_ms, self._silence_ms()) if self._unanswered else self._beat_at_ms
        hold_ms = HOLD_MS if due is not None and due - self._told_ms < BUSY_MS else 0
        return min(self._beat_at_ms, (due or 0) + hold_ms)

    def _plan_beat(self, now: int) -> None:
        """Four signs of life per lease."""
        self._beat_at_ms = now + self._actor.lease_ms // BEATS_PER_LEASE

    def _pause_s(self, code: grpc.StatusCode, words: str) -> float:
        if self._ending:
            return 0.0
        self._tries += 1
        self._tell(f"{REFUSALS[code]}: {words}" if code in REFUSALS else f"not connected to {self.address}: {words}")
        if code in REFUSALS:
            patient = code == grpc.StatusCode.ALREADY_EXISTS and self._tries <= NAME_TAKEN_TRIES
            return NAME_TAKEN_S if patient else REFUSED_S
        return self._retry_s()

    def _retry_s(self) -> float:
        return min(RETRY_S_MIN * (1 << min(self._tries - 1, 10)), RETRY_S_MAX) * random.uniform(0.5, 1.0)

    def _tell(self, words: str) -> None:
        if words != self._said:
            self._said = words
            say(words)


def now_ms() -> int:
    """This host's monotonic clock, which the keeper reads too."""
    return time.monotonic_ns() // 1_000_000


async def _leads(address: str, bundle: Bundle) -> bool:
    """Whether the server at an address says that it leads."""
    async with grpc.aio.secure_channel(address, credentials_of(bundle), options=OPTIONS) as channel:
        try:
            told = await channel.unary_unary(f"{SERVICE}/Who")(b"", timeout=WHO_S_MAX)
            return pb.Leads.FromString(told).leads
        except grpc.aio.AioRpcError:
            return False


async def _leader(call: Call) -> str:
    """Who leads, if the server that has refused us says so."""
    if not call.done():
        return ""
    told = await call.trailing_metadata()
    return next((str(value) for name, value in told or () if name == "roost-leader"), "")


async def _reason(call: Call, errors: BaseExceptionGroup) -> tuple[grpc.StatusCode, str]:
    """Why a stream ended: the server's own words if there are any."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code(), error.details() or error.code().name
    if call.done():
        return await call.code(), await call.details() or str(error)
    return grpc.StatusCode.UNAVAILABLE, str(error) or type(error).__name__
