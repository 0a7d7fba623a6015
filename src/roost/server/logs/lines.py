"""Lines of a log: those since a time, those with a text, the last ones. Bounded, and bytes are searched in threads."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from roost.server.logs.hub import LogHub
from roost.server.logs.masking import Masker
from roost.server.logs.segments import Segment, Stamp

PIECE_BYTES = 1 << 20  # read at a time; a line that is longer is cut
SCAN_BYTES_MAX = 64 << 20  # for one answer: a fifth of a second in a thread
ANSWER_BYTES_MAX = 4 << 20
NOTHING = Masker(())


class StampedLine(NamedTuple):
    """A line with its newline. `at_ms`: when its first byte came to the server; 0: not known."""

    offset: int
    at_ms: int
    data: bytes


class LineFilter(NamedTuple):
    """Which lines are wanted, and how they are shown. The text is searched in what is shown, not in what is masked."""

    text: bytes = b""
    masker: Masker = NOTHING

    def split(self, data: bytes, offset: int) -> list[tuple[int, bytes]]:
        """The wanted lines, with their offsets."""
        found: list[tuple[int, bytes]] = []
        if not self.masker and self.text not in data:
            return found
        for line in data.splitlines(keepends=True) if b"\r" not in data else _split(data):
            shown = self.masker.mask(line) if self.masker else line
            if self.text in shown:
                found.append((offset, shown))
            offset += len(line)
        return found


class FoundLines(NamedTuple):
    lines: list[StampedLine]
    next: int  # where to search on


async def next_lines(hub: LogHub, name: str, start: int, stop: int, filter: LineFilter, limit: int) -> FoundLines:
    """At most so many lines from an offset on that have the text."""
    lines: list[StampedLine] = []
    offset, room = start, ANSWER_BYTES_MAX
    while offset < stop and offset - start < SCAN_BYTES_MAX:
        data = (await hub.read(name, offset, PIECE_BYTES))[: stop - offset]
        if not data:
            break
        end = len(data) if offset + len(data) >= stop else (data.rfind(b"\n") + 1 or len(data))
        found = await hub.in_thread(filter.split, data[:end], offset)
        for line in await _stamped(hub, name, found):
            if len(lines) >= limit or room <= 0:
                return FoundLines(lines, line.offset)
            lines.append(line)
            room -= len(line.data)
        offset += end
    return FoundLines(lines, offset)


async def last_lines(hub: LogHub, name: str, start: int, stop: int, filter: LineFilter, count: int) -> FoundLines:
    """The last lines that have the text, but none before `start`: searched backwards."""
    found: list[tuple[int, bytes]] = []
    end, room = stop, ANSWER_BYTES_MAX
    while end > start and len(found) < count and room > 0 and stop - end < SCAN_BYTES_MAX:
        begin = max(start, end - PIECE_BYTES)
        data = await hub.read(name, begin, end - begin)
        cut = data.find(b"\n") + 1 if begin > start else 0
        cut = 0 if cut == len(data) else cut
        lines = await hub.in_thread(filter.split, data[cut:], begin + cut)
        lines = lines[max(0, len(lines) + len(found) - count) :]
        room -= sum(len(line) for _, line in lines)
        found = lines + found
        end = begin + cut
    return FoundLines(await _stamped(hub, name, found[-count:] if count else []), stop)


async def offset_since(hub: LogHub, name: str, since_ms: int, stop: int) -> int:
    """Where the first line begins that came at or after a time."""
    places: list[Segment | Stamp] = [*hub.machine.segments(name), *hub.machine.stamps(name)]
    later = next((at for at, place in enumerate(places) if place.at_ms >= since_ms), len(places))
    offset = (places[later][0]) if later < len(places) else stop
    before = places[later - 1] if later else None
    if isinstance(before, Segment):
        _, stamps = await hub.open_segment(name, before)
        offset = next((stamp.offset for stamp in stamps if stamp.at_ms >= since_ms), offset)
    if offset and offset < stop and await hub.read(name, offset - 1, 1) != b"\n":
        rest = await hub.read(name, offset, PIECE_BYTES)  # of a line that began before
        offset += rest.find(b"\n") + 1 or len(rest)
    return min(offset, stop)


def _split(data: bytes) -> list[bytes]:
    """At newlines only; `splitlines` would also do it at carriage returns."""
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


async def _stamped(hub: LogHub, name: str, lines: Sequence[tuple[int, bytes]]) -> list[StampedLine]:
    if not lines:
        return []
    stamps = await hub.stamps(name, lines[0][0], lines[-1][0] + 1)
    offsets = [stamp.offset for stamp in stamps]
    found: list[StampedLine] = []
    for offset, data in lines:
        at = bisect_right(offsets, offset) - 1
        found.append(StampedLine(offset, stamps[at].at_ms if at >= 0 else 0, data))
    return found
