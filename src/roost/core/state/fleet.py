"""The nodes as columns: a filter is a mask over all rows, a scorer a vector. Rows are in order of name."""

from bisect import bisect_left
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from roost.core.state.allocation import Allocation
from roost.core.state.shared import Shared
from roost.core.state.topology import NO_DOMAIN, TopologyIndex
from roost.core.state.workload_mix import NOTHING_TYPICAL, WorkloadMix
from roost.model.limits import GPUS_MAX
from roost.model.protocol import Usage
from roost.model.records.node import Facts

Ints = NDArray[np.int64]
Scores = NDArray[np.int32]  # half as wide as amounts: looking for the best among thousands takes half the time
Mask = NDArray[np.bool_]
Kind = TypeVar("Kind", bound=np.generic)

GPU = 1_000  # thousandths in a whole device
MEASURED = ("cpu", "memory")
MASKS_MAX = 1_024  # masks remembered, a byte a node each
LOG_MAX = 4_096  # changed rows remembered for shortlists; one that is further behind starts anew
WHOLE = 1_000_000  # all of a resource; the same as a score of 1
HALF_LIFE_MS = 30_000  # a change of load counts half after so long: a compiler's burst does not matter
CHANGE_MIN = WHOLE // 100  # a share that moved by less is not passed on: each change costs every score cache a row
HALVINGS_MAX = 40  # after so many half-lives nothing is left of what was


class Fleet:
    """Totals and use per resource, kept by three functions: join, leave and take.

    `layout` counts changes of the rows themselves, `freed` the moments at which something that did not fit may fit.
    `log` holds the rows whose use or openness changed, `dropped` how many entries were cut off its front.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.facts: list[Facts] = []
        self.open: Mask = np.zeros(0, np.bool_)
        self.online: Mask = np.zeros(0, np.bool_)
        self.closed: dict[str, str] = {}  # nodes in touch that take no new work -> why, in words that follow "is"
        self.fallbacks: dict[str, str] = {}  # pools that have failed -> the pool that takes what asked for them
        self.owners: dict[str, tuple[str, ...]] = {}  # pools that are not for everybody -> the projects they are for
        self.total: dict[str, Ints] = {}
        self.used: dict[str, Ints] = {}
        self.measured: dict[str, Ints] = {
            resource: np.zeros(0, np.int64) for resource in MEASURED
        }  # smoothed, in millionths
        self.device_total: Ints = np.zeros((0, 0), np.int64)  # a row of GPUs per node, 1,000 each
        self.devices: Ints = np.zeros((0, 0), np.int64)  # what is free of each
        self.ports: dict[str, dict[int, int]] = {}  # node -> port -> how many hold it
        self.topology = TopologyIndex()
        self.typical = NOTHING_TYPICAL  # what work usually asks for, as far as anybody has said
        self.derived: dict[object, Any] = {}  # what scorers worked out; forgotten when rows or the typical change
        self.layout = 0
        self.freed = 0
        self.log: list[int] = []
        self.dropped = 0
        self._requests = (-1, -1)
        self._changed_rows: tuple[int, ...] | None = None
        self._masks: dict[tuple[Any, ...], Mask] = {}
        self._masks_layout = -1
        self._places: dict[str, tuple[int, Ints, list[str]]] = {}
        self._gauges: dict[str, Gauge] = {}

    def __copy__(self) -> "Fleet":
        made = Fleet.__new__(Fleet)
        made.__dict__.update(self.__dict__)
        made.names, made.facts, made.log = list(self.names), list(self.facts), list(self.log)
        made.open, made.online = self.open.copy(), self.online.copy()
        made.closed, made.fallbacks, made.owners = dict(self.closed), dict(self.fallbacks), dict(self.owners)
        made.total, made.used, made.measured = _copied(self.total), _copied(self.used), _copied(self.measured)
        made.device_total, made.devices = self.device_total.copy(), self.devices.copy()
        made.ports = {name: dict(ports) for name, ports in self.ports.items()}
        made.topology = copy(self.topology)
        made.derived, made._places = {}, {}  # what was derived is derived again
        made._masks = dict(self._masks)  # masks never change
        made._gauges = Shared(self._gauges, copy)
        return made

    def __len__(self) -> int:
        return len(self.names)

    def row(self, name: str) -> int:
        """The row of a node, or -1."""
        row = bisect_left(self.names, name)
        return row if row < len(self.names) and self.names[row] == name else -1

    def join(self, name: str, facts: Facts, overcommit: dict[str, int] | None = None) -> None:
        """Add a node, or let a known one tell anew what it offers. Use is kept. Overcommit is in percent."""
        percent = overcommit or {}
        totals = {resource: amount * percent.get(resource, 100) // 100 for resource, amount in facts.resources.items()}
        row = self.row(name)
        if row < 0:
            row = bisect_left(self.names, name)
            self.names.insert(row, name)
            self.facts.insert(row, facts)
            self.open = _with_row(self.open, row)
            self.online = _with_row(self.online, row)
            for resource in self.total:
                self.total[resource] = _with_row(self.total[resource], row)
                self.used[resource] = _with_row(self.used[resource], row)
            for resource in MEASURED:
                self.measured[resource] = _with_row(self.measured[resource], row)
            self.device_total = _with_row(self.device_total, row)
            self.devices = _with_row(self.devices, row)
        elif self.facts[row] == facts and all(self.total[total].item(row) == totals[total] for total in totals):
            return
        self.facts[row] = facts
        for resource in [*self.total, *totals]:
            self._column(resource)
            self.total[resource][row] = totals.get(resource, 0)
        self._set_devices(row, min(facts.resources.get("gpu", 0) // GPU, GPUS_MAX))
        self._layout_changed()

    def leave(self, name: str) -> None:
        """Forget a node."""
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        del self.names[row], self.facts[row]
        self.open = np.delete(self.open, row)
        self.online = np.delete(self.online, row)
        for resource in self.total:
            self.total[resource] = np.delete(self.total[resource], row)
            self.used[resource] = np.delete(self.used[resource], row)
        for resource in MEASURED:
            self.measured[resource] = np.delete(self.measured[resource], row)
        self._gauges.pop(name, None)
        self.closed.pop(name, None)
        self.device_total = np.delete(self.device_total, row, axis=0)
        self.devices = np.delete(self.devices, row, axis=0)
        self._layout_changed()

    def take(self, name: str, claim: Allocation, sign: int = 1, *, is_trial: bool = False) -> None:
        """Count what a claim holds as used on a node; with sign -1, give it back. After a trial nothing is freed."""
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
        if sign < 0 and not is_trial:
            self.freed += 1
        self._changed(row)

    def measure(self, name: str, usage: Usage, now_ms: int) -> None:
        """What a node says it really uses. Shortlists look at it again only if that moved by more than a little."""
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        has = self.facts[row].resources
        shares = {"cpu": share_of(usage.cpu_milli, has.get("cpu", 0))}
        shares["memory"] = share_of(usage.memory, has.get("memory", 0))
        gauge = self._gauges.setdefault(name, Gauge())
        if gauge.update(shares, now_ms):
            for resource in MEASURED:
                self.measured[resource][row] = gauge.reported[resource]
            self._changed(row)

    def touch(self, name: str) -> None:
        """Something else about a node changed that may let somebody in."""
        row = self.row(name)
        if row >= 0:
            self.freed += 1
            self._changed(row)

    def set_open(self, name: str, *, is_open: bool, is_online: bool, closed: str = "") -> None:
        """Whether a node may take new work, and whether it is in touch at all; `closed`: why not, though it is."""
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        if closed:
            self.closed[name] = closed
        else:
            self.closed.pop(name, None)
        if self.open[row] == is_open and self.online[row] == is_online:
            return
        self.open[row] = is_open
        self.online[row] = is_online
        self.freed += 1
        self._changed(row)

    def set_pool(self, name: str, fallback: str, owners: tuple[str, ...]) -> None:
        """Which pool stands in for a pool just now, and for whom it is; empty: none, and for everybody."""
        if self.fallbacks.get(name, "") == fallback and self.owners.get(name, ()) == owners:
            return
        self.fallbacks.pop(name, None)
        self.owners.pop(name, None)
        if fallback:
            self.fallbacks[name] = fallback
        if owners:
            self.owners[name] = owners
        self._layout_changed()

    def expect(self, typical: WorkloadMix) -> None:
        """From now on this is what work usually asks for; whoever scored by something else starts anew."""
        self.typical = typical
        self.derived.clear()
        self.layout += 1

    def free(self, resource: str) -> Ints:
        """Free amounts, row by row; a resource nobody has is 0 everywhere."""
        if resource not in self.total:
            return np.zeros(len(self.names), np.int64)
        return self.total[resource] - self.used[resource]

    def cached_mask(self, key: tuple[Any, ...], says: Callable[[str, Facts], bool]) -> Mask:
        """What is said of each node by its name and facts; remembered under a key until the nodes change."""
        if self._masks_layout != self.layout or len(self._masks) >= MASKS_MAX:
            self._masks.clear()
            self._masks_layout = self.layout
        existing = self._masks.get(key)
        if existing is None:
            pair = zip(self.names, self.facts, strict=True)
            existing = self._masks[key] = np.array([says(name, facts) for name, facts in pair], np.bool_)
        return existing

    def domains(self, by: str) -> Ints:
        """The place of each row: its own, or the number of its rack, zone or region; NOWHERE if it does not say."""
        return self._places_of(by)[1]

    def domain_count(self, by: str) -> int:
        """How many places of a kind there are."""
        return len(self._places_of(by)[2])

    def count_in_domain(self, subject: str, by: str, *, repelled: bool = False) -> Ints:
        """How many of a subject (or of those who are apart from it) are in the place of each row."""
        counts = self.topology.domain_counts(self, subject, by, repelled=repelled).counts
        if by == "node":
            return counts
        places = self.domains(by)
        if not len(counts):
            return np.zeros(len(places), np.int64)
        return np.where(places == NO_DOMAIN, 0, counts[places])

    def changed_since(self, position: int) -> tuple[int, ...] | None:
        """Rows changed since a position of the log, each once; None when that is too long ago.

        The last answer is kept, because a thousand lines ask the same question one after the other.
        """
        if self._requests != (position, self.position):
            start = position - self.dropped
            self._changed_rows = None if start < 0 else tuple(dict.fromkeys(self.log[start:]))
            self._requests = (position, self.position)
        return self._changed_rows

    @property
    def position(self) -> int:
        """Where the log stands now."""
        return self.dropped + len(self.log)

    def _column(self, resource: str) -> Ints:
        if resource not in self.used:
            self.total[resource] = np.zeros(len(self.names), np.int64)
            self.used[resource] = np.zeros(len(self.names), np.int64)
        return self.used[resource]

    def _places_of(self, by: str) -> tuple[int, Ints, list[str]]:
        existing = self._places.get(by)
        if existing is None or existing[0] != self.layout:
            if by == "node":
                existing = (self.layout, np.arange(len(self.names)), self.names)
            else:
                text = [getattr(facts, by) for facts in self.facts]
                names = sorted({item for item in text if item})
                number = {name: index for index, name in enumerate(names)}
                existing = (self.layout, np.array([number.get(item, NO_DOMAIN) for item in text], np.int64), names)
            self._places[by] = existing
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
        if len(self.log) > LOG_MAX:
            cut = LOG_MAX // 2
            del self.log[:cut]
            self.dropped += cut


class Gauge:
    """The measured shares of one node: as smoothed, and as last told."""

    __slots__ = ("at_ms", "smooth", "reported")

    def __init__(self) -> None:
        self.at_ms = -1
        self.smooth: dict[str, int] = {}
        self.reported: dict[str, int] = {}

    def __copy__(self) -> "Gauge":
        made = Gauge()
        made.at_ms, made.smooth, made.reported = self.at_ms, dict(self.smooth), dict(self.reported)
        return made

    def update(self, shares: dict[str, int], now_ms: int) -> bool:
        """Take in a measurement; whether a share moved far enough to be told."""
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
    """How much of an old value counts after a time: a half to the power of the half-lives gone by, in 0..WHOLE.

    Between two halvings the power is drawn by the parabola 1 - (4x - x*x) / 6, which is off by less than 1 %.
    """
    if past_ms <= 0:
        return WHOLE
    halvings, rest = divmod(past_ms, HALF_LIFE_MS)
    if halvings >= HALVINGS_MAX:
        return 0
    square = 6 * HALF_LIFE_MS * HALF_LIFE_MS
    return WHOLE * (square - 4 * rest * HALF_LIFE_MS + rest * rest) // square >> halvings


def _copied(columns: dict[str, Ints]) -> dict[str, Ints]:
    return {resource: column.copy() for resource, column in columns.items()}


def _with_row(column: NDArray[Kind], row: int) -> NDArray[Kind]:
    """With an empty row. np.insert takes eight times as long, and a restart adds every node."""
    wider = np.zeros((len(column) + 1, *column.shape[1:]), column.dtype)
    wider[:row], wider[row + 1 :] = column[:row], column[row:]
    return wider
