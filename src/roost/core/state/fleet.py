"""The nodes as columns: a filter is a mask over all rows, a scorer a vector. Rows are in order of name."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roost.core.state.allocation import Allocation
from roost.core.state.shared import Shared, V
from roost.core.state.topology import NO_DOMAIN, TopologyIndex
from roost.core.state.workload_mix import NOTHING_TYPICAL, WorkloadMix
from roost.model.limits import GPUS_MAX
from roost.model.protocol import Usage
from roost.model.records.node import Facts

Ints = NDArray[np.int64]
Scores = NDArray[np.int32]  # half as wide as amounts: looking for the best among thousands takes half the time
Mask = NDArray[np.bool_]

GPU = 1_000  # thousandths in a whole device
MEASURED = ("cpu", "memory")
MASKS_MAX = 1_024  # masks remembered, a byte a node each
KINDS_MAX = 64  # fields and labels whose values are numbered, 8 bytes a node each
LOG_MAX = 4_096  # changed rows remembered for shortlists; one that is further behind starts anew
ROOM_MIN = 16  # rows that a column has room for at least
WHOLE = 1_000_000  # all of a resource; the same as a score of 1
HALF_LIFE_MS = 30_000  # a change of load counts half after so long: a compiler's burst does not matter
CHANGE_MIN = WHOLE // 100  # a share that moved by less is not passed on: each change costs every score cache a row
HALVINGS_MAX = 40  # after so many half-lives nothing is left of what was


def all_of(masks: Iterable[Mask | None]) -> Mask | None:
    """The rows that pass every mask; None is a mask that all rows pass."""
    result: Mask | None = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result & mask
    return result


class Fleet:
    """Totals and use per resource, kept by three functions: join, leave and take.

    `layout` counts changes of the rows themselves, `freed` the moments at which something that did not fit may fit.
    `taken` counts allocations: after one, something may fit that has to be near it.
    `log` has the rows whose use or openness changed.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.facts: list[Facts] = []
        self.open: Mask = np.zeros(0, np.bool_)
        self.online: Mask = np.zeros(0, np.bool_)
        self.closed: dict[str, str] = {}  # nodes in touch that take no new work -> why: a text that follows "is"
        self.fallbacks: dict[str, str] = {}  # pools that have failed -> the pool that takes what asked for them
        self.owners: dict[str, tuple[str, ...]] = {}  # pools of some projects only -> those projects
        self.of_processes: dict[str, tuple[str, tuple[str, ...]]] = {}  # project -> least isolation, further users
        self.total: dict[str, Ints] = {}
        self.used: dict[str, Ints] = {}
        self.measured: dict[str, Ints] = {name: np.zeros(0, np.int64) for name in MEASURED}  # smoothed, in millionths
        self.device_total: Ints = np.zeros((0, 0), np.int64)  # a row of GPUs per node, 1,000 each
        self.devices: Ints = np.zeros((0, 0), np.int64)  # what is free of each
        self.ports: dict[str, dict[int, int]] = {}  # node -> port -> how many hold it
        self.images: dict[str, frozenset[int]] = {}  # node -> keys of the images that it has
        self.topology = TopologyIndex()
        self.typical = NOTHING_TYPICAL  # what work usually asks for, as far as it is known
        self.derived: dict[object, Any] = {}  # what scorers worked out; forgotten when rows or the typical change
        self.layout = 0
        self.freed = 0
        self.taken = 0
        self.log: list[int] = []
        self.position = 0  # how many entries the log has had; its front is cut off
        self._requests = (-1, -1)
        self._changed_rows: tuple[int, ...] | None = None
        self._masks: dict[tuple[Any, ...], Mask] = {}
        self._masks_layout = -1
        self._domains: dict[str, tuple[int, Ints, int]] = {}
        self._kinds: dict[tuple[str, str], tuple[int, list[Any], Ints]] = {}
        self._gauges: dict[str, Gauge] = {}

    def __copy__(self) -> "Fleet":
        made = Fleet.__new__(Fleet)
        made.__dict__.update(self.__dict__)
        made.names, made.facts, made.log = list(self.names), list(self.facts), list(self.log)
        made.open, made.online = self.open.copy(), self.online.copy()
        made.closed, made.fallbacks, made.owners = dict(self.closed), dict(self.fallbacks), dict(self.owners)
        made.of_processes = dict(self.of_processes)
        made.total, made.used, made.measured = _copied(self.total), _copied(self.used), _copied(self.measured)
        made.device_total, made.devices = self.device_total.copy(), self.devices.copy()
        made.ports = {name: dict(ports) for name, ports in self.ports.items()}
        made.images = dict(self.images)
        made.topology = copy(self.topology)
        made.derived, made._domains, made._kinds = {}, {}, {}  # derived again when needed
        made._masks = dict(self._masks)  # masks never change
        made._gauges = Shared(self._gauges, copy)
        return made

    def __len__(self) -> int:
        return len(self.names)

    def row(self, name: str) -> int:
        """The row of a node, or -1."""
        row = bisect_left(self.names, name)
        return row if row < len(self.names) and self.names[row] == name else -1

    def _known_row(self, name: str) -> int:
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        return row

    def join(self, name: str, facts: Facts, overcommit: dict[str, int] | None = None) -> None:
        """Add a node, or change what a known one offers. Use is kept. Overcommit is in percent."""
        percent = overcommit or {}
        totals = {resource: amount * percent.get(resource, 100) // 100 for resource, amount in facts.resources.items()}
        row = self.row(name)
        if row < 0:
            row = bisect_left(self.names, name)
            self.names.insert(row, name)
            self.facts.insert(row, facts)
            self._edit_columns(lambda column: _with_row(column, row))
        elif self.facts[row] == facts and all(self.total[total].item(row) == totals[total] for total in totals):
            return
        self.facts[row] = facts
        for resource in [*self.total, *totals]:
            self._column(resource)
            self.total[resource][row] = totals.get(resource, 0)
        self._set_devices(row, min(facts.resources.get("gpu", 0) // GPU, GPUS_MAX))
        self._layout_changed()

    def leave(self, name: str) -> None:
        row = self._known_row(name)
        del self.names[row], self.facts[row]
        self._edit_columns(lambda column: _without_row(column, row))
        self._gauges.pop(name, None)
        self.closed.pop(name, None)
        self.images.pop(name, None)
        self._layout_changed()

    def _edit_columns(self, edit: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self.open, self.online = edit(self.open), edit(self.online)
        self.device_total, self.devices = edit(self.device_total), edit(self.devices)
        for columns in (self.total, self.used, self.measured):
            for resource, column in columns.items():
                columns[resource] = edit(column)

    def take(self, name: str, claim: Allocation, sign: int = 1, *, is_trial: bool = False) -> None:
        """Count an allocation as used on a node; with sign -1, release it. A trial frees and takes nothing."""
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        for resource, amount in claim.resources:
            column = self._column(resource)
            column[row] = column.item(row) + sign * amount  # twice as fast as += on a row
        if claim.devices:
            self._widen(max(claim.devices) + 1)
            for device in claim.devices:
                self.devices[row, device] -= sign * claim.device_milli
        if claim.ports:
            allocated = self.ports.setdefault(name, {})
            for port in claim.ports:
                allocated[port] = allocated.get(port, 0) + sign
                if not allocated[port]:
                    del allocated[port]
            if not allocated:
                del self.ports[name]
        if claim.selectors:
            self.topology.take(self, name, claim.selectors, claim.anti_affinity, sign)
        if not is_trial:
            self.freed += sign < 0
            self.taken += sign > 0
        self._changed(row)

    def measure(self, name: str, usage: Usage, now_ms: int) -> None:
        """Take in the measured usage of a node. Score caches see a change of more than CHANGE_MIN only."""
        row = self._known_row(name)
        if (images := frozenset(usage.images)) != self.images.get(name, frozenset()):
            _set_or_pop(self.images, name, images)
            self._changed(row)
        has = self.facts[row].resources
        measured = (("cpu", usage.cpu_milli), ("memory", usage.memory))
        shares = {resource: share_of(used, has.get(resource, 0)) for resource, used in measured}
        gauge = self._gauges.setdefault(name, Gauge())
        if gauge.update(shares, now_ms):
            for resource in MEASURED:
                self.measured[resource][row] = gauge.reported[resource]
            self._changed(row)

    def touch(self, name: str) -> None:
        """Something else about a node changed, so that an ask may fit there now."""
        row = self.row(name)
        if row >= 0:
            self.freed += 1
            self._changed(row)

    def set_open(self, name: str, *, is_open: bool, is_online: bool, closed: str = "") -> None:
        """Whether a node may take new work, and whether it is in touch at all; `closed`: why not, though it is."""
        row = self._known_row(name)
        _set_or_pop(self.closed, name, closed)
        if self.open[row] != is_open or self.online[row] != is_online:
            self.open[row], self.online[row] = is_open, is_online
            self.freed += 1
            self._changed(row)

    def set_pool(self, name: str, fallback: str, owners: tuple[str, ...]) -> None:
        """The fallback of a pool at the moment (empty: none), and the projects it is for (empty: all)."""
        if self.fallbacks.get(name, "") != fallback or self.owners.get(name, ()) != owners:
            _set_or_pop(self.fallbacks, name, fallback)
            _set_or_pop(self.owners, name, owners)
            self._layout_changed()

    def expect(self, typical: WorkloadMix) -> None:
        """From now on this is the typical mix of work; all scores are computed again."""
        self.typical = typical
        self.derived.clear()
        self.layout += 1

    def free(self, resource: str) -> Ints:
        """Free amounts, row by row; 0 for a resource that no node has."""
        if resource not in self.total:
            return np.zeros(len(self.names), np.int64)
        return self.total[resource] - self.used[resource]

    def free_one(self, resource: str, row: int) -> int:
        total = self.total.get(resource)
        return total.item(row) - self.used[resource].item(row) if total is not None else 0

    def cached_mask(self, key: tuple[Any, ...], make: Callable[[], Mask]) -> Mask:
        """A mask that is made of names and facts, cached under a key until the nodes change."""
        if self._masks_layout != self.layout or len(self._masks) >= MASKS_MAX:
            self._masks.clear()
            self._masks_layout = self.layout
        existing = self._masks.get(key)
        if existing is None:
            existing = self._masks[key] = make()
        return existing

    def field_mask(self, key: tuple[Any, ...], field: str, says: Callable[[Any], bool]) -> Mask:
        """What `says` answers for a field of the facts of each node: asked once for each value. Cached likewise."""

        def make() -> Mask:
            values, kinds = self.kinds(field)
            answers: Mask = np.array([says(value) for value in values], np.bool_)
            return answers[kinds]

        return self.cached_mask(key, make)

    def kinds(self, field: str, entry: str = "") -> tuple[list[Any], Ints]:
        """The values of a field of the facts, or of an entry of a mapping there, and which of them each row has."""
        existing = self._kinds.get((field, entry))
        if existing is None or existing[0] != self.layout:
            if existing is None and len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            values = [getattr(facts, field) for facts in self.facts]
            if entry:
                values = [value.get(entry) for value in values]
            number: dict[Any, int] = {value: index for index, value in enumerate(dict.fromkeys(values))}
            kinds = np.array([number[value] for value in values], np.int64)
            existing = self._kinds[field, entry] = (self.layout, list(number), kinds)
        return existing[1:]

    def domains(self, by: str) -> Ints:
        """The domain of each row: its own, or the number of its rack, zone or region; NO_DOMAIN if it has none."""
        return self._domains_of(by)[1]

    def domain_count(self, by: str) -> int:
        return self._domains_of(by)[2]

    def count_in_domain(self, subject: str, by: str, *, repelled: bool = False) -> Ints:
        """How many match a selector (or are `apart` from it) in the domain of each row."""
        counts = self.topology.domain_counts(self, subject, by, repelled=repelled)
        return counts[:-1] if by == "node" else counts[self.domains(by)]

    def changed_since(self, position: int) -> tuple[int, ...] | None:
        """Rows changed since a position of the log, each once; None when that is too long ago.

        The last answer is kept, because a thousand classes ask the same question one after the other.
        """
        if self._requests != (position, self.position):
            start = position - self.position + len(self.log)
            self._changed_rows = None if start < 0 else tuple(dict.fromkeys(self.log[start:]))
            self._requests = (position, self.position)
        return self._changed_rows

    def _column(self, resource: str) -> Ints:
        if resource not in self.used:
            self.total[resource] = np.zeros(len(self.names), np.int64)
            self.used[resource] = np.zeros(len(self.names), np.int64)
        return self.used[resource]

    def _domains_of(self, by: str) -> tuple[int, Ints, int]:
        """The layout for which this was computed, the domain of each row, and the number of domains."""
        existing = self._domains.get(by)
        if existing is None or existing[0] != self.layout:
            if by == "node":
                existing = (self.layout, np.arange(len(self.names)), len(self.names))
            else:
                names = [getattr(facts, by) for facts in self.facts]
                number = {name: index for index, name in enumerate(sorted(set(names) - {""}))}
                rows = np.array([number.get(name, NO_DOMAIN) for name in names], np.int64)
                existing = (self.layout, rows, len(number))
            self._domains[by] = existing
        return existing

    def _set_devices(self, row: int, count: int) -> None:
        self._widen(count)
        new = np.zeros(self.devices.shape[1], np.int64)
        new[:count] = GPU
        self.devices[row] += new - self.device_total[row]
        self.device_total[row] = new

    def _widen(self, width: int) -> None:
        missing = width - self.devices.shape[1]
        if missing > 0:
            self.device_total = np.pad(self.device_total, ((0, 0), (0, missing)))
            self.devices = np.pad(self.devices, ((0, 0), (0, missing)))

    def _layout_changed(self) -> None:
        self.layout += 1
        self.derived.clear()
        self.freed += 1

    def _changed(self, row: int) -> None:
        self.log.append(row)
        self.position += 1
        if len(self.log) > LOG_MAX:
            del self.log[: LOG_MAX // 2]


class Gauge(Struct):
    """The measured shares of one node: as smoothed, and as last reported."""

    at_ms: int = -1
    smooth: dict[str, int] = {}
    reported: dict[str, int] = {}

    def __copy__(self) -> "Gauge":
        return Gauge(self.at_ms, dict(self.smooth), dict(self.reported))

    def update(self, shares: dict[str, int], now_ms: int) -> bool:
        """Take in a measurement. Returns True if a share moved far enough to be reported."""
        stored = decay(now_ms - self.at_ms) if self.at_ms >= 0 else 0
        self.at_ms = max(now_ms, self.at_ms)
        for resource, share in shares.items():
            before = self.smooth.get(resource, share)
            self.smooth[resource] = (before * stored + share * (WHOLE - stored)) // WHOLE
        if all(abs(share - self.reported.get(resource, 0)) <= CHANGE_MIN for resource, share in self.smooth.items()):
            return False
        self.reported = dict(self.smooth)
        return True


def share_of(used: int, total: int) -> int:
    """A share in 0..WHOLE; of nothing it is 0."""
    return min(max(used, 0), total) * WHOLE // total if total > 0 else 0


def decay(past_ms: int) -> int:
    """How much of an old value counts after a time: 0.5 to the power of the half-lives, in 0..WHOLE.

    Between two halvings the power is the parabola 1 - (4x - x*x) / 6, which is off by less than 1 %.
    """
    if past_ms <= 0:
        return WHOLE
    halvings, rest = divmod(past_ms, HALF_LIFE_MS)
    if halvings >= HALVINGS_MAX:
        return 0
    square = 6 * HALF_LIFE_MS * HALF_LIFE_MS
    return WHOLE * (square - 4 * rest * HALF_LIFE_MS + rest * rest) // square >> halvings


def _set_or_pop(mapping: dict[str, V], key: str, value: V) -> None:
    if value:
        mapping[key] = value
    else:
        mapping.pop(key, None)


def _copied(columns: dict[str, Ints]) -> dict[str, Ints]:
    return {resource: column.copy() for resource, column in columns.items()}


def _with_row(column: NDArray[Any], row: int) -> NDArray[Any]:
    """With an empty row. A column is the front of an array with spare room, which is copied when it doubles only."""
    size, room = len(column), column.base
    if room is None or len(room) == size:
        room = np.zeros((max(ROOM_MIN, 2 * size), *column.shape[1:]), column.dtype)
        room[:size] = column
    wider: NDArray[Any] = room[: size + 1]
    wider[row + 1 :] = wider[row:-1]
    wider[row] = 0
    return wider


def _without_row(column: NDArray[Any], row: int) -> NDArray[Any]:
    column[row:-1] = column[row + 1 :]
    return column[:-1]
