"""How long runs take: learnt from those that are over, else as their user says, else not known."""

from collections.abc import Iterator
from typing import NamedTuple

from roost.core.state import State
from roost.model.instance import Instance
from roost.model.workload import Ask, Workload

SAMPLES_MAX = 500  # runs looked at per workload or ask: more do not move a quantile
FINISHED_MAX = 2_000  # finished workloads looked at for runs with the same ask: some milliseconds


class Length(NamedTuple):
    """Run times in milliseconds, sorted, and how they are known."""

    samples: tuple[int, ...]
    source: str  # workload | ask | expected | timeout

    def at(self, percent: int, elapsed: int = 0) -> int:
        """The run time that so many of a hundred runs do not pass, given that it has lasted this long already.

        Whoever has outlived all before it may end at any moment, or last as long again.
        """
        left = [each for each in self.samples if each > elapsed]
        if not left:
            return elapsed * (100 + percent) // 100
        return left[min(len(left) - 1, len(left) * percent // 100)]


class Lengths:
    """The lengths of all workloads, each found when it is first asked for."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, Length | None] = {}
        self._by_ask: dict[Ask, list[int]] | None = None

    def of(self, workload: Workload) -> Length | None:
        """How long its runs take; None: nobody knows, or it is not to end."""
        if workload.policy.kind != "job":
            return None
        if workload.key not in self._known:
            self._known[workload.key] = self._find(workload)
        return self._known[workload.key]

    def sources(self) -> frozenset[str]:
        """How the lengths that were asked for are known."""
        return frozenset(each.source for each in self._known.values() if each is not None)

    def _find(self, workload: Workload) -> Length | None:
        policy = workload.policy
        own = [] if not self._has_ended(workload) else list(_samples(self._state, workload))
        if own:
            return Length(tuple(sorted(own)), "workload")
        alike = self._alike(policy.ask)
        if alike:
            return Length(tuple(sorted(alike)), "ask")
        if policy.expected_ms:
            return Length((policy.expected_ms,), "expected")
        return Length((policy.timeout_ms,), "timeout") if policy.timeout_ms else None

    def _has_ended(self, workload: Workload) -> bool:
        progress = self._state.progress.get(workload.key)
        return progress is not None and progress.counts.get("succeeded", 0) > 0

    def _alike(self, ask: Ask) -> list[int]:
        """Runs of finished workloads with the same ask, the latest first."""
        if self._by_ask is None:
            self._by_ask = {}
            for number, key in enumerate(reversed(self._state.finished)):
                if number == FINISHED_MAX:
                    break
                workload = self._state.workloads[key]
                known = self._by_ask.setdefault(workload.policy.ask, [])
                if len(known) < SAMPLES_MAX and workload.policy.kind == "job":
                    known.extend(_samples(self._state, workload))
        return self._by_ask.get(ask, [])


def _samples(state: State, workload: Workload) -> Iterator[int]:
    begun = state.begun(workload)
    for index in range(max(0, begun - SAMPLES_MAX), begun):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.state == "succeeded":
            yield ran_ms(instance, instance.finished_ms)


def ran_ms(instance: Instance, until_ms: int) -> int:
    """How long it has run; what was not told to have started is counted from when it was placed."""
    began = instance.started_ms or next((each.at_ms for each in reversed(instance.story) if each.state == "placed"), 0)
    return max(0, until_ms - began) if began else 0
