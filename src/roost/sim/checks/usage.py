"""Sums of usage, checked from outside: a commit counts the attempts whose allocation it releases, each once."""

from roost.model.records.usage import DayUsage
from roost.model.states import ALLOCATED, InstanceState
from roost.sim.checks.records import Records
from roost.sim.world.world import Wrong


class UsageCheckers:
    def __init__(self, records: Records) -> None:
        self._records = records

    def committed(self) -> None:
        """What never began is released and not counted, so a commit has a least and a most."""
        least = most = 0
        for _, old, new in self._records.changed("instance"):
            since = old.story[-1].revision if old is not None else 0
            if new is None or (old is not None and new.story[0].before is None and new.story[0].revision > since):
                if old is None or old.state in ALLOCATED:
                    return  # its last lines are gone with its record; another of its name may be there
                if new is None:
                    continue
            released = [
                line
                for line in new.story
                if line.revision > since and line.before in ALLOCATED and line.state not in ALLOCATED
            ]
            most += len(released)
            least += sum(line.before == InstanceState.RUNNING for line in released)
        counted = sum(_attempts(new) - _attempts(old) for _, old, new in self._records.changed("usage"))
        if not least <= counted <= most:
            raise Wrong(f"a commit ended {least} to {most} attempts that began, and counted the usage of {counted}")


def _attempts(day: DayUsage | None) -> int:
    return sum(totals.attempts for totals in day.workloads.values()) if day is not None else 0
