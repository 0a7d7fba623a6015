"""Copies into and out of runs: between clients that ask for them and the agents that carry them out.

What a copy moves is held against garbage collection for as long as the leader knows the copy.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from roost.core.lifecycle.commands import files_excess
from roost.core.state.files import byte_room, project_full
from roost.core.state.state import State
from roost.model.errors import Conflict, Invalid, NoService, NotFound, RoostError, TooMuch
from roost.model.protocol import CopyOrder, CopyProblem, CopyReport
from roost.model.records.files import FileSet
from roost.model.records.instance import Instance
from roost.model.states import FINISHED, InstanceState
from roost.ports.blobs import BLOB_BYTES_MAX
from roost.server.engine.engine import Engine
from roost.server.engine.questions import Questions
from roost.server.files.copies import Copy, CopyTable
from roost.server.files.sets import complete_set
from roost.server.files.store import Files
from roost.server.waiting import wait_for

LOOK_S = 0.5  # between looks at what is to be given up
GIVEN_UP = {
    "ended": ("not_running", "the attempt of {instance} ended before the copy"),
    "not_taken": (
        "not_taken", "node {node} has not begun the copy: it is not connected, or its release cannot copy; try again",
    ),
    "too_long": ("too_long", "node {node} was not done with the copy in two hours"),
}  # fmt: skip


class CopyRequest(NamedTuple):
    """What a client asks for. `digest`: into the run; without one: out of it."""

    id: str
    project: str
    path: str
    digest: str
    name: str
    is_file: bool


class Copying:
    """The copies that this leader knows. `wake`: make an agent ask for its copies."""

    def __init__(self, engine: Engine, files: Files, reading: Questions) -> None:
        self._engine = engine
        self._files = files
        self._reading = reading
        self.wake: Callable[[str], None] = lambda node: None
        self._epoch = -1
        self._begin()

    def _begin(self) -> None:
        """What an earlier lead has known counts no more: its holds went with it."""
        if self._epoch != self._engine.machine.epoch:
            self._epoch = self._engine.machine.epoch
            self._table = CopyTable()
            self._holds: dict[str, AsyncExitStack] = {}
            self._changed = asyncio.Event()

    @property
    def table(self) -> CopyTable:
        self._begin()
        return self._table

    async def run(self) -> None:
        """Give up what cannot become anything, until cancelled."""
        while True:
            await self._expire()
            await asyncio.sleep(LOOK_S)

    # for clients

    async def copy(self, request: CopyRequest, instance: Instance, principal: str, wait_s: float) -> Copy | None:
        """A copy that is done; None: it is under way. Raises its error. The first call with an id begins it."""
        copy = self.table.find(request.id) or await self._start(request, instance, principal)
        wanted = (request.project, instance.key, request.path, request.digest)
        if (copy.project, copy.instance, copy.order.path, copy.order.digest) != wanted:
            raise Conflict("another copy has this id", code="id_in_use", path="copy")
        until = time.monotonic() + wait_s
        while self.table.find(request.id) is copy:
            self.table.asked(request.id, self._now())
            left = until - time.monotonic()
            if not copy.is_under_way or left <= 0:
                return _outcome(copy)
            await wait_for(self._changed, left)
        raise NoService("the copy is not known here any longer; ask for it again")

    async def end(self, id: str, project: str, instance: str) -> None:
        """A client needs it no more. That there is none is fine."""
        copy = self.table.find(id)
        if copy is not None and (copy.project, copy.instance) == (project, instance):
            self.table.end(id)
            await self._let_go(copy)

    async def _start(self, request: CopyRequest, instance: Instance, principal: str) -> Copy:
        if instance.state is not InstanceState.RUNNING:
            message = f"{instance.key} is {instance.state}; files are copied while it runs"
            facts = {"instance": instance.key, "state": instance.state.value}
            raise Conflict(message, code="not_running", params=facts)
        if refusal := self.table.refusal(instance.node, principal):
            raise NoService(f"{refusal}; try again when one has ended", code="too_many_copies")
        state, transit, now = self._engine.state, self.table.in_transit(request.project), self._now()
        room = byte_room(state, request.project, BLOB_BYTES_MAX) - sum(files.size for files in transit)
        order = CopyOrder(
            request.id, instance.token, request.path, request.digest, request.name, max(0, room), request.is_file
        )
        copy = Copy(order, request.project, instance.key, instance.node, principal, now, now, now)
        if request.digest:
            copy.files = await self._hold(copy, request.digest)
        else:
            _require_room(state, request.project, [*transit, FileSet("", 1, 1)])
        if request.digest and request.id not in self._holds:
            raise NoService("another server leads by now; try again")
        known = self.table.find(request.id)  # the same call may have come twice
        if known is None:
            self.table.begin(copy)
            self.wake(copy.node)
        return known or copy

    # for agents

    def take(self, node: str) -> list[CopyOrder]:
        return self.table.take(node)

    def is_due(self, node: str) -> bool:
        return self.table.is_due(node)

    def offer_again(self, node: str) -> None:
        self.table.offer_again(node, self._now())

    def manifests(self, token: int) -> set[str]:
        return self.table.manifests(token)

    async def reported(self, node: str, report: CopyReport) -> None:
        """The outcome of a copy. What was read is there, whole, before its client hears of it."""
        copy, files = self.table.find(report.id), None
        if copy is None or copy.node != node or copy.order.token != report.token or not copy.is_under_way:
            return
        if report.problem is None and report.outputs is not None and report.outputs.files is not None:
            try:
                files = await self._hold(copy, report.outputs.files.digest)
                if files != report.outputs.files:
                    raise Conflict(f"the manifest has {files.files} files and {files.size} bytes")
            except NoService:
                raise
            except RoostError as error:
                report = CopyReport(report.id, report.token, CopyProblem.FAILED, error.message)
        if self.table.reported(node, report, files) is None:
            await self._let_go(copy)  # its client has left meanwhile
        self._notify()

    # what is held

    async def _hold(self, copy: Copy, digest: str) -> FileSet:
        """Verify a set, and keep it until the copy has ended. Raises Conflict where the project has no room for it."""
        files = self._files.project(copy.project)
        async with AsyncExitStack() as stack:
            who = copy.principal if copy.order.digest else ""
            found = await stack.enter_async_context(complete_set(files, digest, self._reading, who))
            _require_room(self._engine.state, copy.project, [*self.table.in_transit(copy.project), found])
            if copy.order.id in self._holds:
                return found
            self._holds[copy.order.id] = stack.pop_all()
        return found

    async def _let_go(self, copy: Copy) -> None:
        stack = self._holds.pop(copy.order.id, None)
        if stack is not None:
            await stack.aclose()
        self._notify()

    async def _expire(self) -> None:
        if self.table.is_empty:
            return
        for copy in list(self.table.expire(self._now(), self._goes_on)):
            await self._let_go(copy)
        for node in self.table.due_nodes():
            self.wake(node)
        self._notify()

    def _goes_on(self, copy: Copy) -> bool:
        instance = self._engine.state.instances.get(copy.instance)
        if instance is None or instance.token != copy.order.token:
            return False
        return instance.state not in FINISHED  # of one that is lost, the agent may return

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _now(self) -> int:
        return self._engine.clock.now_ms()


def _outcome(copy: Copy) -> Copy | None:
    if copy.given_up:
        code, message = GIVEN_UP[copy.given_up]
        raise Conflict(message.format(instance=copy.instance, node=copy.node), code=code)
    if copy.report is None:
        return None
    match copy.report.problem:
        case None:
            return copy
        case CopyProblem.NOT_FOUND:
            raise NotFound(copy.report.message, code="no_such_file", path="path")
        case CopyProblem.TOO_LARGE:
            raise TooMuch(copy.report.message, path="path")
        case CopyProblem.REFUSED:
            raise Invalid("path", copy.report.message)
        case CopyProblem.NOT_RUNNING:
            raise Conflict(f"{copy.instance}: {copy.report.message}", code="not_running")
    raise Conflict(f"node {copy.node}: {copy.report.message}", code="copy_failed")


def _require_room(state: State, project: str, sets: list[FileSet]) -> None:
    if over := project_full(state, project, sets):
        raise files_excess(project, over, "")
