"""Scenes and simulated lives whose steps are written into a journal, as a server does it."""

from pathlib import Path
from typing import Any

import pytest

from roost.core.effects import Step
from roost.core.state import Settings, State
from roost.model.events import Event
from roost.ports.store import Snapshot
from roost.server.journal import Journal
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
    journal = Journal(folder, file_bytes_max, 1_000 * PLENTY)
    load, step = sim_server.load, sim_server.step

    def loaded(snapshot: Snapshot, now: int, settings: Settings) -> State:
        journal.begin(snapshot, now, settings)
        return load(snapshot, now, settings)

    def stepped(state: State, events: list[Event], now: int) -> Step:
        done = step(state, events, now)
        journal.record(state, events, done.changes)
        return done

    monkeypatch.setattr(sim_server, "load", loaded)
    monkeypatch.setattr(sim_server, "step", stepped)
    assert not simulate(seed).trouble
    assert journal.is_writing
    journal.close()
    monkeypatch.undo()
