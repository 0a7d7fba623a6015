"""Hooks: the leader sends changes of state to their receivers, at least once, and no decision waits for it.

The executor hands over each commit; a loop turns it into events and offers these to the channels. The position of each
hook is stored from time to time, and the next leader reads the events after it from the stories of the state.
"""

import asyncio
import os
import time
from asyncio import TaskGroup
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from roost import __version__
from roost.core.state.state import State
from roost.model.errors import NoService, NotFound
from roost.model.events import PutRecords
from roost.model.records.access import EVERYWHERE
from roost.model.records.opaque import OpaqueRecord
from roost.model.records.transition import Transitioned
from roost.model.records.webhook import Command, Hook, WebhookEvent, WebhookPosition, sign
from roost.ports.store import Change
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.pki.encryption import Seal, Unsealable
from roost.server.pki.secrets import HOOK, bound, decode_hook
from roost.server.waiting import wait_for
from roost.server.webhooks.channel import TIMING, Channel, RetryTiming
from roost.server.webhooks.command import Commands
from roost.server.webhooks.destinations import Destinations
from roost.server.webhooks.events import KINDS, Batch, Occurrence, WebhookReader, batch_of
from roost.server.webhooks.http import Poster, PostOutcome

KIND = HOOK
POSITION = "hook-position"
POSITIONS = "all"  # the one record of that kind: two hundred hooks are 30 KB

# Pending events of all hooks together, and of each: 0.5 KB apiece, so 100 MB if every receiver is dead. A burst of
# 10,000 ends is delivered to a live receiver; with 200 hooks each has room for 1,000.
WAITING_MAX = 200_000
ROOM_MIN, ROOM_MAX = 1_000, 10_000
BACKLOG_MAX = 50_000  # changes that are not read yet; beyond that the whole state is read
CONNECTIONS_MAX = 64  # at once, of all hooks
TESTS_MAX = 4  # pings at once
STORE_S = 5.0  # between two positions that are stored: what is repeated after a crash
STORE_QUIET_S = 600.0  # the same while there are no events: how far the next leader has to read back
LOOK_S = 0.5  # how often to check whether this server still leads
AGAIN_S = 1.0

log = logging.logger("hooks")


class Hooks:
    """All hooks of a server."""

    seal: Seal  # set before the first request

    def __init__(
        self, engine: Engine, commands: Sequence[Command] = (), *, destinations: Destinations,
        timing: RetryTiming = TIMING, store_s: float = STORE_S, poster: Poster | None = None,
        runner: Commands | None = None,
    ) -> None:  # fmt: skip
        self._engine = engine
        self.commands = {f"{EVERYWHERE}/command:{command.name}": command for command in commands}
        self.destinations = destinations
        self._timing = timing
        self._store_s = store_s
        self._poster = poster or Poster(destinations)
        self._runner = runner or Commands()
        self._gate = asyncio.Semaphore(CONNECTIONS_MAX)
        self._testing = 0
        self._wake = asyncio.Event()
        self._backlog: deque[Batch] = deque()
        self._backlog_changes = 0
        self._behind = False  # the backlog was too long and was discarded
        self._stale = False  # hooks were set or removed
        self._term: tuple[int, State] | None = None
        self._reader = WebhookReader(0)
        self._seen = WebhookPosition(0)
        self._stored: dict[str, WebhookPosition] = {}
        self._stored_s = 0.0
        self._moved = False
        self._records: dict[str, bytes] = {}
        self._hooks: dict[str, Hook] = {}
        self.channels: dict[str, Channel] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def _leads(self) -> bool:
        """Whether this server leads, and no other server can have taken over."""
        team = self._engine.leadership
        return self._engine.ready and (team is None or team.is_sure())

    # the engine's side

    def take(
        self, state: State, changes: Sequence[Change], transitions: Sequence[Transitioned] = ()
    ) -> None:  # fmt: skip
        """A commit of this server is durable. Free without hooks; nothing is decoded here."""
        kinds = {change.kind for change in changes}
        self._stale = self._stale or KIND in kinds
        if (not self.commands and not state.opaque_records.get(KIND)) or not (kinds & KINDS or transitions):
            return
        batch = batch_of(state, changes, transitions)
        self._backlog.append(batch)
        self._backlog_changes += batch.size
        if self._backlog_changes > BACKLOG_MAX:
            self._backlog.clear()
            self._backlog_changes = 0
            self._behind = True
        self._wake.set()

    # the loop

    async def run(self) -> None:
        """Send events while this server leads, until cancelled. Failures are logged and retried."""
        async with TaskGroup() as group:
            while True:
                self._wake.clear()
                try:
                    await self._inspect(group)
                except NoService:
                    self._rest()
                except Exception:
                    log.error("hooks are begun anew", exc_info=True)
                    self._rest()
                    await asyncio.sleep(AGAIN_S)
                await wait_for(self._wake, LOOK_S)

    async def leave(self) -> None:
        """The server stops or hands over the lead: store where the next leader continues."""
        with suppress(NoService, TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await self._store()

    async def close(self) -> None:
        self._poster.close()
        await asyncio.to_thread(self._runner.close)

    async def _inspect(self, group: TaskGroup) -> None:
        engine = self._engine
        if not self._leads:
            self._rest()
            return
        state = await engine.settled()
        if self._term is None or self._term[0] != engine.machine.epoch or self._term[1] is not state:
            await self._begin_term(state, group)
        if self._stale:
            self._sync(await engine.settled(), group)
        if self._behind:
            self._behind = False
            await self._catch_up(await engine.settled(), self._seen)
        while self._backlog:
            batch = self._backlog.popleft()
            self._backlog_changes -= batch.size
            if self._stale:  # a hook that was set meanwhile gets the events after that
                self._sync(await engine.settled(), group)
            if batch.revision > self._seen.revision:
                self._seen = WebhookPosition(batch.revision, batch.at_ms)
                self._moved = True
                self._offer(self._reader.read(batch))
            await asyncio.sleep(0)
        is_changed = any(channel.changed for channel in self.channels.values())
        passed_s = time.monotonic() - self._stored_s
        if (is_changed and passed_s >= self._store_s) or (self._moved and passed_s >= STORE_QUIET_S):
            await self._store()

    async def _begin_term(self, state: State, group: TaskGroup) -> None:
        """This server has become the leader: continue where the previous leader ended."""
        self._rest()
        self._term = (self._engine.machine.epoch, state)
        self._reader = WebhookReader(state.meta.first_serial)
        record = state.opaque_records.get(POSITION, {}).get(POSITIONS)
        self._stored = _POSITIONS.decode(record) if record is not None else {}
        self._stored_s = time.monotonic()
        self._seen = WebhookPosition(state.revision, self._engine.clock.now_ms())
        self._sync(state, group)
        starts = [channel.start for channel in self.channels.values()]
        if starts:
            revision, at_ms = min(start.revision for start in starts), min(start.at_ms for start in starts)
            await self._catch_up(state, WebhookPosition(revision, at_ms))

    async def _catch_up(self, state: State, since: WebhookPosition) -> None:
        """Read the events after a position from the whole state."""
        self._seen = WebhookPosition(state.revision, self._engine.clock.now_ms())
        self._moved = True
        if since.revision >= state.revision:
            return
        found, torn = await self._reader.read_state(state, since.revision, since.at_ms)
        self._offer(found)
        if torn:
            message = f"events between revisions {since.revision} and {self._seen.revision} may be missing"
            log.warning(message, objects=torn)
            for channel in self.channels.values():
                channel.missing = message

    def _offer(self, events: list[Occurrence]) -> None:
        by_project: dict[str, list[Channel]] = {}
        for channel in self.channels.values():
            by_project.setdefault(channel.project, []).append(channel)
        for event, reason in events:
            for channel in (*by_project.get(EVERYWHERE, ()), *by_project.get(event.project, ())):
                channel.offer(event, reason)

    def _sync(self, state: State, group: TaskGroup) -> None:
        """Open and end channels so that they match the stored hooks."""
        self._stale = False
        records = state.opaque_records.get(KIND, {})
        for key in self._records.keys() - records.keys():
            del self._records[key], self._hooks[key]
            self._end(key)
        for key, record in records.items():
            if self._records.get(key) == record:
                continue
            self._records[key] = record
            try:
                hook = self._hooks[key] = decode_hook(record)
            except msgspec.MsgspecError as error:
                log.error("the record of a hook is damaged; set it again", hook=key, error=str(error))
                hook = self._hooks[key] = Hook("", enabled=False)
            if not hook.enabled:
                self._end(key)
            elif key in self.channels:
                self.channels[key].wish(hook.events, hook.workload)
            else:
                stored, set_at = self._stored.get(key, WebhookPosition(0)), WebhookPosition(hook.since, hook.changed_ms)
                start = stored if stored.revision >= set_at.revision else set_at
                self._open(key, hook.events, hook.workload, start, group)
        for key, command in self.commands.items():
            if key not in self.channels:
                self._open(key, command.events, "", self._stored.get(key, self._seen), group)
        room = max(ROOM_MIN, min(ROOM_MAX, WAITING_MAX // max(1, len(self.channels))))
        for channel in self.channels.values():
            channel.set_room(room)

    def _open(self, key: str, events: tuple[str, ...], pattern: str, start: WebhookPosition, group: TaskGroup) -> None:
        now_ms = self._engine.clock.now_ms
        channel = self.channels[key] = Channel(key, events, pattern, start, ROOM_MAX, self._timing, now_ms)
        self._moved = True
        self._tasks[key] = group.create_task(self._run(channel))

    async def _run(self, channel: Channel) -> None:
        while True:
            try:
                await channel.run(lambda event: self._send(channel.key, event), self._gate)
            except Exception:
                log.error("a hook is begun anew", hook=channel.key, exc_info=True)
                await asyncio.sleep(AGAIN_S)

    def _end(self, key: str) -> None:
        self._stored.pop(key, None)
        if self.channels.pop(key, None) is not None:
            self._tasks.pop(key).cancel()
            self._moved = True

    def _rest(self) -> None:
        if self._term is None:
            return
        self._term = None
        for task in self._tasks.values():
            task.cancel()
        self._tasks, self.channels, self._records, self._hooks = {}, {}, {}, {}

    async def _store(self) -> None:
        if self._term is None or not self._leads:
            return
        positions = {key: channel.position(self._seen) for key, channel in self.channels.items()}
        self._stored_s = time.monotonic()
        for channel in self.channels.values():
            channel.changed = False
        self._moved = False
        if positions == self._stored:
            return
        record = OpaqueRecord(POSITION, POSITIONS, msgspec.msgpack.encode(positions))
        await self._engine.ask(partial(PutRecords, records=(record,)))
        self._stored = positions

    # sending

    async def _send(self, key: str, event: WebhookEvent) -> PostOutcome:
        while not self._leads:
            await asyncio.sleep(LOOK_S)  # until the loop notices, and cancels this
        hook = self.commands.get(key) or self._hooks.get(key)
        if hook is None:
            return PostOutcome(False, 0, "the hook is gone")
        return await self._try(key, hook, event)

    async def _try(self, key: str, hook: Hook | Command, event: WebhookEvent) -> PostOutcome:
        if isinstance(hook, Command):
            return await self._runner.run(hook, event)
        body = msgspec.json.encode(event)
        headers = {"User-Agent": f"Roost/{__version__}", "Roost-Event": event.event}
        headers |= {"Roost-Delivery": event.id, "Roost-Hook": key}
        if hook.sealed:
            try:
                secret = self.seal.open(bound(KIND, key), hook.sealed)
            except Unsealable:
                return PostOutcome(False, 0, "its secret cannot be opened with the server's keys; set it again")
            headers["Roost-Signature"] = sign(secret, int(time.time()), body)
        return await self._poster.post(hook.url, headers, body)

    async def test(self, key: str) -> tuple[PostOutcome, int]:
        """Send a ping once, ahead of the queue; its outcome, and how many milliseconds it took."""
        state = await self._engine.settled()
        record = state.opaque_records.get(KIND, {}).get(key)
        hook = self.commands.get(key) or (decode_hook(record) if record is not None else None)
        if hook is None:
            raise NotFound(f"there is no hook {key:.140}")
        if self._testing >= TESTS_MAX:
            raise NoService("too many hooks are being tried at once; try again in a moment", code="busy")
        now_ms = self._engine.clock.now_ms()
        ping = WebhookEvent(
            id=os.urandom(16).hex(), event="ping", at_ms=now_ms, revision=state.revision, kind=KIND, key=key
        )
        self._testing += 1
        began = time.monotonic()
        try:
            return await self._try(key, hook, ping), int((time.monotonic() - began) * 1_000)
        finally:
            self._testing -= 1


_POSITIONS = msgspec.msgpack.Decoder(dict[str, WebhookPosition])
