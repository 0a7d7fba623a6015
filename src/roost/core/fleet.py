"""The nodes as columns: a filter is a mask over all rows, a scorer a vector. Rows are in order of name."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roost.core.claim import Claim
from roost.core.company import NOWHERE, Crowd
from roost.core.fragments import NOTHING_TYPICAL, Typical
from roost.core.measured import Gauge, share_of
from roost.model.frames import Usage
from roost.model.limits import GPUS_MAX
from roost.model.node import Facts

Ints = NDArray[np.int64]
Scores = NDArray[np.int32]  # half as wide as amounts: looking for the best among thousands takes half the time
Mask = NDArray[np.bool_]

GPU = 1_000  # thousandths in a whole device
MEASURED = ("cpu", "memory")
SAID_MAX = 1_024  # masks remembered, a byte a node each
LOG_MAX = 4_096  # changed rows remembered for shortlists; one that is further behind starts anew


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
        self.measured: dict[str, Ints] = {each: np.zeros(0, np.int64) for each in MEASURED}  # smoothed, in millionths
        self.device_total: Ints = np.zeros((0, 0), np.int64)  # a row of GPUs per node, 1,000 each
        self.devices: Ints = np.zeros((0, 0), np.int64)  # what is free of each
        self.ports: dict[str, dict[int, int]] = {}  # node -> port -> how many hold it
        self.crowd = Crowd()
        self.typical = NOTHING_TYPICAL  # what work usually asks for, as far as anybody has said
        self.derived: dict[object, Any] = {}  # what scorers worked out; forgotten when rows or the typical change
        self.layout = 0
        self.freed = 0
        self.log: list[int] = []
        self.dropped = 0
        self._asked = (-1, -1)
        self._changed_rows: tuple[int, ...] | None = None
        self._said: dict[tuple[Any, ...], Mask] = {}
        self._said_layout = -1
        self._places: dict[str, tuple[int, Ints, list[str]]] = {}
        self._gauges: dict[str, Gauge] = {}

    def __len__(self) -> int:
        return len(self.names)

    def row(self, name: str) -> int:
        """The row of a node, or -1."""
        row = bisect_left(self.names, name)
        return row if row < len(self.names) and self.names[row] == name else -1

    def join(self, name: str, facts: Facts, overcommit: dict[str, int] | None = None) -> None:
        """Add a node, or let a known one tell anew what it offers. Use is kept. Overcommit is in percent."""
        percent = overcommit or {}
        totals = {each: amount * percent.get(each, 100) // 100 for each, amount in facts.resources.items()}
        row = self.row(name)
        if row < 0:
            row = bisect_left(self.names, name)
            self.names.insert(row, name)
            self.facts.insert(row, facts)
            self.open = np.insert(self.open, row, False)
            self.online = np.insert(self.online, row, False)
            for resource in self.total:
                self.total[resource] = np.insert(self.total[resource], row, 0)
                self.used[resource] = np.insert(self.used[resource], row, 0)
            for resource in MEASURED:
                self.measured[resource] = np.insert(self.measured[resource], row, 0)
            self.device_total = np.insert(self.device_total, row, 0, axis=0)
            self.devices = np.insert(self.devices, row, 0, axis=0)
        elif self.facts[row] == facts and all(self.total[each].item(row) == totals[each] for each in totals):
            return
        self.facts[row] = facts
        for resource in [*self.total, *totals]:
            self._column(resource)
            self.total[resource][row] = totals.get(resource, 0)
        self._set_devices(row, min(facts.resources.get("gpu", 0) // GPU, GPUS_MAX))
        self._relaid()

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
        self._relaid()

    def take(self, name: str, claim: Claim, sign: int = 1, *, is_trial: bool = False) -> None:
        """Count what a claim holds as used on a node; with sign -1, give it back. After a trial nothing is freed."""
        row = self.row(name)
        assert row >= 0, f"{name} is not in the fleet"
        for resource, amount in claim.resources:
            self._column(resource)[row] += sign * amount
        if claim.devices:
            self._widen(max(claim.devices) + 1)
            for device in claim.devices:
                self.devices[row, device] -= sign * claim.device_milli
        if claim.ports:
            held = self.ports.setdefault(name, {})
            for port in claim.ports:
                held[port] = held.get(port, 0) + sign
                if not held[port]:
                    del held[port]
            if not held:
                del self.ports[name]
        if claim.subjects:
            self.crowd.take(self, name, claim.subjects, claim.apart, sign)
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
        if gauge.hear(shares, now_ms):
            for resource in MEASURED:
                self.measured[resource][row] = gauge.told[resource]
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
        self._relaid()

    def expect(self, typical: Typical) -> None:
        """From now on this is what work usually asks for; whoever scored by something else starts anew."""
        self.typical = typical
        self.derived.clear()
        self.layout += 1

    def free(self, resource: str) -> Ints:
        """Free amounts, row by row; a resource nobody has is 0 everywhere."""
        if resource not in self.total:
            return np.zeros(len(self.names), np.int64)
        return self.total[resource] - self.used[resource]

    def said_of(self, key: tuple[Any, ...], says: Callable[[str, Facts], bool]) -> Mask:
        """What is said of each node by its name and facts; remembered under a key until the nodes change."""
        if self._said_layout != self.layout or len(self._said) >= SAID_MAX:
            self._said.clear()
            self._said_layout = self.layout
        known = self._said.get(key)
        if known is None:
            each = zip(self.names, self.facts, strict=True)
            known = self._said[key] = np.array([says(name, facts) for name, facts in each], np.bool_)
        return known

    def places(self, by: str) -> Ints:
        """The place of each row: its own, or the number of its rack, zone or region; NOWHERE if it does not say."""
        return self._places_of(by)[1]

    def places_count(self, by: str) -> int:
        """How many places of a kind there are."""
        return len(self._places_of(by)[2])

    def place_names(self, by: str) -> list[str]:
        """Their names, by number."""
        return self._places_of(by)[2]

    def here(self, subject: str, by: str, *, repelled: bool = False) -> Ints:
        """How many of a subject (or of those who are apart from it) are in the place of each row."""
        counts = self.crowd.census(self, subject, by, repelled=repelled).counts
        if by == "node":
            return counts
        places = self.places(by)
        if not len(counts):
            return np.zeros(len(places), np.int64)
        return np.where(places == NOWHERE, 0, counts[places])

    def changed_since(self, position: int) -> tuple[int, ...] | None:
        """Rows changed since a position of the log, each once; None when that is too long ago.

        The last answer is kept, because a thousand lines ask the same question one after the other.
        """
        if self._asked != (position, self.position):
            start = position - self.dropped
            self._changed_rows = None if start < 0 else tuple(dict.fromkeys(self.log[start:]))
            self._asked = (position, self.position)
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
        known = self._places.get(by)
        if known is None or known[0] != self.layout:
            if by == "node":
                known = (self.layout, np.arange(len(self.names)), self.names)
            else:
                said = [getattr(facts, by) for facts in self.facts]
                names = sorted({each for each in said if each})
                number = {each: index for index, each in enumerate(names)}
                known = (self.layout, np.array([number.get(each, NOWHERE) for each in said], np.int64), names)
            self._places[by] = known
        return known

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

    def _relaid(self) -> None:
        self.layout += 1
        self.derived.clear()
        self.freed += 1

    def _changed(self, row: int) -> None:
        self.log.append(row)
        if len(self.log) > LOG_MAX:
            cut = LOG_MAX // 2
            del self.log[:cut]
            self.dropped += cut
