"""The blob store of a simulated world, and what a server does with it: holds, admission of outputs, garbage collection.

The collector is the product's machine. Its driver here carries out each step late, and servers die between any two.
A set of files is a manifest and two contents, one of which other sets share.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from roost.blobs.garbage import DeleteBlobs, GarbageCollector, ListBlobs
from roost.core.state.state import State
from roost.model.protocol import Report
from roost.model.records.files import FileSet, OutputGap, OutputProblem, Outputs
from roost.ports.blobs import BlobInfo, BlobPage
from roost.sim.checks.files import FileCheckers
from roost.sim.world.file_sets import parts_of
from roost.sim.world.world import SideChance, World

if TYPE_CHECKING:
    from roost.sim.world.server import SimulatedServer

LIKELY = 0.3  # of worlds have files; for the others nothing changes
EPOCH_MS = 1_700_000_000_000  # of the store's own clock
PAGE = 4  # blobs: a round has several steps
GRACE_MS = 300
HOLD_MS = 2_000  # longer than the commit of a report takes, unless its leader loses the lead
STEP_MS = (1, 120)  # between two steps of a collector
CHECK_MS = (0, 800)  # until a server has looked at the files of a request
REQUEST_MS = 600  # until a request to the store has had its effect, at most, also of a server that died


class SimulatedBlobs:
    """All blobs of a world. They survive servers; requests take effect, also if their server has died."""

    checkers: FileCheckers

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = SideChance(f"files {world.seed}")
        self.are_used = self.chance.happens(LIKELY)
        self.stored: dict[str, int] = {}  # digest -> when
        self.going: tuple[str, ...] = ()  # recorded with the lead of a server: what it may be deleting

    def missing(self, digests: Iterable[str]) -> list[str]:
        return [digest for digest in digests if digest not in self.stored]

    def put(self, digests: Iterable[str]) -> None:
        for digest in digests:
            self.stored[digest] = EPOCH_MS + self.world.now

    def delete(self, digest: str) -> None:
        self.stored.pop(digest, None)
        self.checkers.deleted(digest)

    def page(self, after: str) -> BlobPage:
        digests = sorted(digest for digest in self.stored if digest > after)
        blobs = [BlobInfo(digest, 1, self.stored[digest]) for digest in digests[:PAGE]]
        return BlobPage(blobs, digests[PAGE - 1] if len(digests) > PAGE else None)


class ServerFiles:
    """The part of a server that knows the blob store, for one lead."""

    def __init__(self, blobs: SimulatedBlobs, server: "SimulatedServer") -> None:
        self._blobs = blobs
        self._server = server
        self._garbage: GarbageCollector | None = None
        self._requests: dict[int, Sequence[FileSet]] = {}  # that are not answered
        self._reports: dict[int, FileSet] = {}  # token -> outputs that are not committed

    def began(self) -> None:
        """It leads. What an earlier leader recorded may be deleted until its last request has had its effect."""
        if not self._blobs.are_used or self._server.is_forgetful:  # without a store, the next life knows no names
            return
        now = self._server.clock.now_ms()
        self._garbage = GarbageCollector(now, self._blobs.going, grace_ms=GRACE_MS, hold_ms=HOLD_MS)
        self._after(2 * REQUEST_MS, self._settle, self._blobs.going)
        self._next()

    # uploads, requests and reports

    def hold(self, owner: str, sets: Sequence[FileSet]) -> list[str] | None:
        """Hold sets of files: what of them has to be sent. None: some are being deleted, or it does not lead."""
        digests = [digest for item in sets for digest in parts_of(item.digest)]
        if not self._server.ready:
            return None
        if self._garbage is not None and self._garbage.hold(owner, digests, self._server.clock.now_ms()):
            return None
        return self._blobs.missing(digests)

    def asked(self, owner: int, sets: Sequence[FileSet]) -> bool:
        """A client has sent what is missing, and asks for a record that names it; held until `answered`."""
        missing = self.hold(f"request {owner}", sets)
        if missing is not None:
            self._blobs.put(missing)
            self._requests[owner] = sets
        return missing is not None

    def answered(self, owner: int) -> None:
        self._requests.pop(owner, None)

    def admitted(self, report: Report) -> Report:
        """Outputs are whole, and held until the report is committed; or they are not kept."""
        files = report.outputs.files if report.outputs is not None else None
        if files is None:
            return report
        if self.hold(f"report {report.token}", [files]) == []:
            self._reports[report.token] = files
            return report
        return msgspec.structs.replace(report, outputs=Outputs(None, (OutputGap(OutputProblem.NOT_STORED),)))

    def _hold_on(self) -> None:
        """Renew the holds of what is not committed so far."""
        live = {token for tokens in self._server.state.allocated.values() for token in tokens}
        self._reports = {token: files for token, files in self._reports.items() if token in live}
        for token, files in self._reports.items():
            self.hold(f"report {token}", [files])
        for owner, sets in self._requests.items():
            self.hold(f"request {owner}", sets)

    # garbage collection

    def _next(self) -> None:
        self._after(self._blobs.chance.between(*STEP_MS), self._step)

    def _step(self) -> None:
        garbage = self._garbage
        if not self._leads() or garbage is None:
            return
        if may_look(self._server):
            self._hold_on()
            todo = garbage.step(lambda digest: is_named(self._server.state, digest), self._server.clock.now_ms())
            if isinstance(todo, ListBlobs):
                garbage.listed(self._blobs.page(todo.after))
            elif isinstance(todo, DeleteBlobs):
                self._after(self._blobs.chance.between(0, REQUEST_MS), self._record, todo.digests)
            else:
                garbage.begin()
        self._next()

    def _record(self, digests: tuple[str, ...]) -> None:
        """Record durably what goes: only the newest leader can."""
        if self._leads() and not self._server.is_fenced:
            self._blobs.going = digests
            self._delete(digests)
        else:
            self._settle(digests)

    def _delete(self, digests: tuple[str, ...]) -> None:
        """One by one, as long as no other server can lead."""
        if not digests:
            return
        if self._leads() and self._server.is_sure:
            world, effect_ms = self._blobs.world, self._blobs.chance.between(0, REQUEST_MS)
            world.after(effect_ms, self._blobs.delete, digests[0])
            self._after(effect_ms, self._deleted, digests)
        else:  # for these no request was made
            self._settle(digests)

    def _deleted(self, digests: tuple[str, ...]) -> None:
        assert self._garbage is not None
        self._garbage.deleted(digests[0])
        if len(digests) > 1:
            self._delete(digests[1:])

    def _settle(self, digests: tuple[str, ...]) -> None:
        assert self._garbage is not None
        for digest in digests:
            self._garbage.deleted(digest)

    def _leads(self) -> bool:
        return self._server.files is self and self._server.ready

    def _after(self, delay_ms: int, action: Callable[..., None], *given: object) -> None:
        self._blobs.world.after(delay_ms, self._server.awake, self._unless_over, action, *given)

    def _unless_over(self, action: Callable[..., None], *given: object) -> None:
        if self._server.files is self:
            action(*given)


def may_look(server: "SimulatedServer") -> bool:
    """Whether the state in memory is that on disk: a step that is not committed may be discarded."""
    return not server.machine.is_deciding


def is_named(state: State, digest: str) -> bool:
    return any(digest in parts_of(files.digest) for sets in state.file_sets.values() for files in sets)
