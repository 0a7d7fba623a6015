"""Masking: values of secrets in a view of a log become `***`. What is stored is not changed.

Whether a byte is masked depends on the bytes around it alone, as far as the longest value reaches. So a log can be read
in pieces of any size, from any offset, and the pieces together are what masking the whole gives.
"""

from collections.abc import Iterable

MASK = b"***"
VALUE_BYTES_MIN = 4  # shorter ones occur by chance: every third line would be masked
HEAD_BYTES = 8
LINE_BYTES_MIN = 8  # of a value with several lines, each of which may be printed alone


class Masker:
    """Knows the values of one run."""

    def __init__(self, values: Iterable[bytes]) -> None:
        found: set[bytes] = set()
        for value in values:
            whole, lines = value.strip(b"\r\n"), value.splitlines()
            found.update([whole] if len(whole) >= VALUE_BYTES_MIN else [])
            found.update(line for line in lines if len(lines) > 1 and len(line) >= LINE_BYTES_MIN)
        self._values = sorted(found)
        self.reach = max(map(len, self._values), default=0)  # bytes around a piece that have to be known

    def __bool__(self) -> bool:
        return bool(self._values)

    def mask(self, data: bytes) -> bytes:
        return self.mask_between(b"", data, b"")

    def mask_between(self, before: bytes, data: bytes, after: bytes) -> bytes:
        """A piece as it is shown. `before`, `after`: bytes around it, as many as `reach` where there are so many."""
        start, end = len(before), len(before) + len(data)
        shown: list[bytes] = []
        at = start
        for first, last in self._masked(before + data + after):
            if last <= start:
                continue
            if first >= end:
                break
            shown += [data[at - start : max(first, start) - start], MASK if first >= start else b""]
            at = min(last, end)
        return b"".join((*shown, data[at - start :]))

    def held_back(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a value, of which more may come."""
        return max((_held_back(value, data[-(len(value) - 1) :]) for value in self._values), default=0)

    def _masked(self, data: bytes) -> list[tuple[int, int]]:
        """The ranges that values cover. Those that touch are one."""
        hits: list[tuple[int, int]] = []
        for value in self._values:
            at = data.find(value)
            while at >= 0:
                hits.append((at, at + len(value)))
                at = data.find(value, at + 1)
        ranges: list[tuple[int, int]] = []
        for first, last in sorted(hits):
            if ranges and first <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(last, ranges[-1][1]))
            else:
                ranges.append((first, last))
        return ranges


def _held_back(value: bytes, end: bytes) -> int:
    """The length of the longest end that begins as the value does. A value may have 32 KiB: its head is searched."""
    head = value[:HEAD_BYTES]
    at = end.find(head)
    while at >= 0:
        if value.startswith(end[at:]):
            return len(end) - at
        at = end.find(head, at + 1)
    lengths = range(min(len(head) - 1, len(end)), 0, -1)
    return next((length for length in lengths if head.startswith(end[-length:])), 0)


class MaskedStream:
    """A log that is followed: bytes that may become a value are held back until more is known."""

    def __init__(self, masker: Masker, before: bytes = b"") -> None:
        self._masker = masker
        self._before = before  # the bytes in front of where it begins
        self.held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be shown of the log so far."""
        return self._show(self.held + data, self._masker.held_back(self.held + data))

    def finish(self) -> bytes:
        """The log has ended: what was held back."""
        return self._show(self.held, 0)

    def _show(self, data: bytes, held: int) -> bytes:
        sure, self.held = data[: len(data) - held], data[len(data) - held :]
        shown = self._masker.mask_between(self._before, sure, self.held)
        self._before = (self._before + sure)[-self._masker.reach :] if self._masker.reach else b""
        return shown
