"""Logs of a simulated server: the product's machine, its local parts, and objects that are put some time later."""

from functools import partial
from typing import TYPE_CHECKING

from roost.blobs.log_memory import MemoryLogs
from roost.model.errors import NoService
from roost.server.logs import ends
from roost.server.logs.codec import decode, encode
from roost.server.logs.machine import LogMachine
from roost.server.logs.parts import SealPart
from roost.server.logs.segments import Segment, read_key, workload_of
from roost.sim.world.world import PROJECTS, SideChance

if TYPE_CHECKING:
    from roost.sim.world.server import SimulatedServer

CUT = 0.3  # of crashes: power loss, which takes the ends of files
SEGMENT_BYTES = 200  # a log has several
SWEEP_MS = 1_000
PUT_MS_MAX = 1_000
FAILED = 0.1  # of puts; half of them have put the object, and only the answer is lost


class SimulatedLogs(LogMachine):
    """As server/logs/hub.py drives it."""

    def __init__(self, server: "SimulatedServer") -> None:
        super().__init__(server.blobs, server.clock.now_ms(), segment_bytes=SEGMENT_BYTES)
        self._server = server
        self._life = server.life
        self._world = server.world
        self.begin(server.blobs.found())
        self._world.after(SWEEP_MS, server.awake, self._sweep)

    def list_segments(self, name: str, *, again: bool = False) -> None:
        if again or self.must_list(name):
            segments = map(read_key, self._server.objects.list(name))
            self.listed(name, [segment for segment in segments if segment is not None])

    def keep(self, name: str, offset: int, data: bytes) -> int:
        size = self.append(name, offset, data, self._server.clock.now_ms(), self._world.now)
        assert isinstance(size, int)
        self._seal_more()
        return size

    def read(self, name: str, offset: int, limit: int) -> bytes:
        """Raises NoService for a segment that is gone."""
        found = b""
        while limit > len(found) and (place := self.locate(name, offset + len(found))) is not None:
            if isinstance(place, Segment):
                stored = self._server.objects.get(place.key(name))
                if stored is None:
                    raise NoService(f"{place} of {name} is gone", code="log_unavailable")
                found += decode(place, stored)[0][offset + len(found) - place.start :]
            else:
                found += self._server.blobs.read(*place, limit)
        return found[:limit]

    def drop(self, prefix: str) -> None:
        self.dropped(prefix)
        self._server.blobs.drop(prefix)
        self._server.objects.delete(prefix)

    def _sweep(self) -> None:
        if self._server.life != self._life or not self._server.up:
            return
        for name in list(self.open):
            self.list_segments(name)
            self.settle(name, ends.end_to_seal(self._server.state, name), self._server.clock.now_ms())
        self._seal_more()
        if self._server.ready and not self._server.machine.is_deciding:
            self._collect()
        self._world.after(SWEEP_MS, self._server.awake, self._sweep)

    def _collect(self) -> None:
        """As server/files/collection.py does; also a leader that was replaced and does not know it."""
        stored = [key for project in PROJECTS for key in self._server.objects.list(project)]
        for prefix in dict.fromkeys(map(workload_of, stored)):
            if ends.is_forgotten(self._server.state, prefix):
                self.drop(prefix)

    def _seal_more(self) -> None:
        for seal in self.seals(self._server.clock.now_ms()):
            data = self._server.blobs.read(seal.part, 0, seal.segment.end - seal.segment.start)
            put = partial(self._put, seal, encode(data, seal.stamps))
            self._world.after(self._world.side_chance.between(1, PUT_MS_MAX), put)

    def _put(self, seal: SealPart, stored: bytes) -> None:
        """The object arrives; also that of a server that has crashed meanwhile may."""
        chance = self._world.side_chance
        is_failed = chance.happens(FAILED) or self._server.life != self._life
        if not is_failed or chance.happens(0.5):
            self._server.objects.put(seal.segment.key(seal.log), stored)
        answer_ms = chance.between(1, PUT_MS_MAX)
        self._world.after(answer_ms, self._server.awake, partial(self._answered, seal, is_failed=is_failed))

    def _answered(self, seal: SealPart, *, is_failed: bool) -> None:
        if self._server.life != self._life:
            return
        if is_failed:
            self.not_sealed(seal, self._server.clock.now_ms())
        elif (unwanted := self.sealed(seal)) is not None:
            self._server.objects.delete(unwanted)
        self._seal_more()


def cut_blobs(chance: SideChance, blobs: MemoryLogs) -> None:
    """Power loss at a server: the ends of some parts were not on the disk yet. Objects were."""
    if chance.happens(CUT):
        for local in blobs.found():
            if chance.happens(0.3):
                kept = blobs.read(local.key, 0, chance.between(0, local.size))
                blobs.drop(local.key)
                if kept:
                    blobs.append(local.key, 0, kept)
