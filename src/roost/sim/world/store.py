"""A store that lies: the file of one server alone, as SQLite keeps it. Commits have checksums, a mark says how many.

At a crash, commits that were acknowledged may be torn, altered or gone. SQLite ignores what follows a wrong checksum:
only the high-water mark tells that something is missing. A server must refuse such a store, and never go on silently.
"""

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from roost.ports.store import Change, Snapshot
from roost.server.maintenance.backup import as_of_now, revision_as_of_now
from roost.sim.world.world import SideChance
from roost.stores.memory import Memory
from roost.stores.sqlite import high_water
from roost.stores.sqlite.high_water import Acknowledged, LossKind, StoreLoss

IDENTITY = "0" * 32
LOST_MAX = 5  # commits that a disk acknowledges and does not write, at most
#: What a crash may do to a store. The last two lose nothing that was acknowledged.
DAMAGES = ("torn", "flipped", "unsynced", "gone", "mark_flipped", "mark_behind", "torn_unacknowledged")
HARMLESS = DAMAGES[-2:]


class Frame(NamedTuple):
    """A commit as it is in the file, or a new epoch if it has no changes."""

    revision: int
    epoch: int
    changes: tuple[Change, ...]
    checksum: int

    @property
    def is_whole(self) -> bool:
        return self.checksum == checksum(self.revision, self.epoch, self.changes)


class SimulatedStore:
    def __init__(self, chance: SideChance) -> None:
        self._chance = chance
        self._base = Snapshot(0, [])  # what was there when the file was made
        self._frames: list[Frame] = []
        self._mark = b""
        self._sound: tuple[list[Frame], bytes] | None = None  # as they were before they were damaged
        self.damage = ""

    def wrote(self, epoch: int, revision: int, changes: Sequence[Change] = ()) -> None:
        """A commit, or a new epoch, is acknowledged."""
        self._frames.append(Frame(revision, epoch, tuple(changes), checksum(revision, epoch, changes)))
        self._mark = high_water.encode_mark(Acknowledged(IDENTITY, revision, epoch))

    def hurt(self) -> None:
        """Do one kind of damage, unless there is nothing to lose yet."""
        chance, frames = self._chance, self._frames
        if not frames or self.damage:
            return
        self._sound = (list(frames), self._mark)
        self.damage = chance.choice(DAMAGES)
        last = frames[-1]
        match self.damage:
            case "torn":
                frames[-1] = last._replace(changes=last.changes[:-1], checksum=last.checksum ^ 1)
            case "flipped":
                number = len(frames) - chance.between(1, min(LOST_MAX, len(frames)))
                frames[number] = frames[number]._replace(checksum=frames[number].checksum ^ 1 << chance.between(0, 31))
            case "unsynced":
                del frames[-chance.between(1, min(LOST_MAX, len(frames))) :]
            case "gone":
                frames.clear()
            case "mark_flipped":
                at = chance.between(0, len(self._mark) - 1)
                self._mark = self._mark[:at] + bytes([self._mark[at] ^ 1]) + self._mark[at + 1 :]
            case "mark_behind":
                before = chance.choice(frames)
                self._mark = high_water.encode_mark(Acknowledged(IDENTITY, before.revision, before.epoch))
            case "torn_unacknowledged":
                frames.append(last._replace(revision=last.revision + 1, checksum=0))

    def open(self) -> Memory | StoreLoss | None:
        """What a server reads; None: all is as it was."""
        if not self.damage:
            return None
        whole = self._whole()
        found = Acknowledged(IDENTITY, *self._frames[whole - 1][:2]) if whole else None
        mark = high_water.decode_mark(self._mark)
        loss = StoreLoss(LossKind.MARK_UNREADABLE) if mark is None else high_water.find_loss(mark, found)
        if loss is not None:
            return loss
        del self._frames[whole:]
        self.damage = ""
        return self._memory()

    @property
    def is_empty(self) -> bool:
        return not self._base.records and not any(frame.changes for frame in self._frames[: self._whole()])

    def restore(self) -> None:
        """The operator brings back the files as they were."""
        assert self._sound is not None
        self._frames, self._mark = self._sound
        self.damage = ""

    def accept_loss(self, now_ms: int) -> Memory:
        """The operator goes on with what is there: `roost store repair --accept-loss`."""
        del self._frames[self._whole() :]
        mark, left = high_water.decode_mark(self._mark), self._memory().snapshot()
        revision = max(left.revision, mark.revision if mark is not None else 0)
        self._base = Snapshot(revision_as_of_now(revision, now_ms, now_ms), as_of_now(left.records, now_ms))
        self._frames, self.damage = [], ""
        return self._memory()

    def _whole(self) -> int:
        """How many frames are read: SQLite ignores what follows a wrong checksum."""
        return next((number for number, frame in enumerate(self._frames) if not frame.is_whole), len(self._frames))

    def _memory(self) -> Memory:
        memory = Memory()
        memory._revision = self._base.revision
        memory._records = {change.record: change for change in self._base.records}
        for frame in self._frames:
            while memory.lead_now.epoch < frame.epoch:
                memory.lead("server")
            if frame.revision > memory._revision:
                memory.apply(frame.epoch, frame.changes)
        return memory


def checksum(revision: int, epoch: int, changes: Sequence[Change]) -> int:
    value = crc32(b"%d %d" % (revision, epoch))
    for change in changes:
        value = crc32(change.value or b"", crc32(change.key.encode(), value))
    return value
