"""Scenes and simulated lives whose steps are written into a journal, as a server does it."""

from pathlib import Path
from typing import Any

import pytest

from roost.core.effects import Step
from roost.core.state import Settings, State
from roost.model.events import Event
from roost.ports.store import Snapshot
from roost.server.journal import Journal, records_of
from roost.sim import server as sim_server
from roost.sim.simulate import simulate
from roost.sim.traces.history import History, read_history
from tests.core.scene import Scene

PLENTY = 1 << 40


class Recorded(Scene):
    """A scene that is recorded."""

    def __init__(self, folder: Path, *names: str, file_bytes_max: int = PLENTY, **settings: Any) -> None:
        self.journal: Journal | None = None
        cpu = settings.pop("cpu", 4)
        super().__init__(**settings)
        self.journal = Journal(folder, file_bytes_max, 1_000 * PLENTY)
        self.journal.begin(self.memory.snapshot(), self.now, self.settings)
        for name in names:
            self.hello(name, cpu=cpu)

    def step(self, *events: Event) -> Step:
        done = super().step(*events)
        if self.journal is not None:
            self.journal.record(self.state, events, done.changes)
        return done

    def restart(self, *, forgetful: bool = False) -> None:
        super().restart(forgetful=forgetful)
        assert self.journal is not None
        self.journal.begin(self.memory.snapshot(), self.now, self.settings)

    def run_for(self, duration: str, *names: str) -> None:
        """These run at once and end well after a time."""
        self.running(*names)
        self.wait(duration)
        self.ended(*names)

    def history(self, folder: Path) -> History:
        assert self.journal is not None and self.journal.is_writing
        self.journal.close()
        return read(folder)


def read(path: Path) -> History:
    """Journals, stepped through."""
    return read_history(path, lambda share: None)


def record_simulation(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, file_bytes_max: int = PLENTY) -> None:
    """Everything goes wrong for the servers of a seed, and all they decide is recorded."""
    load, step, take_over = sim_server.load, sim_server.step, sim_server.take_over
    journals: dict[int, tuple[State, Journal]] = {}  # of several servers each has its own

    def began(state: State, snapshot: Snapshot, now: int, *, sudden: bool = False) -> None:
        journal = Journal(folder, file_bytes_max, 1_000 * PLENTY)
        journal.begin(snapshot, now, state.settings, sudden=sudden)
        journals[id(state)] = (state, journal)

    def loaded(snapshot: Snapshot, now: int, settings: Settings) -> State:
        state = load(snapshot, now, settings)
        began(state, snapshot, now)
        return state

    def taken_over(state: State, now: int, *, sudden: bool) -> None:
        began(state, Snapshot(state.revision, records_of(state)), now, sudden=sudden)
        take_over(state, now, sudden=sudden)

    def stepped(state: State, events: list[Event], now: int) -> Step:
        done = step(state, events, now)
        journals[id(state)][1].record(state, events, done.changes)
        return done

    for name, instead in (("load", loaded), ("step", stepped), ("take_over", taken_over)):
        monkeypatch.setattr(sim_server, name, instead)
    assert not simulate(seed).trouble
    for _, journal in journals.values():
        assert journal.is_writing
        journal.close()
    monkeypatch.undo()
