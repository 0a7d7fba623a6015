"""Scenes and simulated lives whose steps are written into a journal, as a server does it."""

from pathlib import Path
from typing import Any

import pytest

from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.model.events import Event
from roost.ports.store import Snapshot
from roost.server.engine import machine
from roost.server.engine.recording import Journal, records_of
from roost.sim.recordings.recording import Recording, read_history
from roost.sim.run import simulate
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

    def history(self, folder: Path) -> Recording:
        assert self.journal is not None and self.journal._file is not None
        self.journal.close()
        return read(folder)


def read(path: Path) -> Recording:
    """Journals, stepped through."""
    return read_history(path, lambda share: None)


def record_simulation(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, file_bytes_max: int = PLENTY) -> None:
    """Everything goes wrong for the servers of a seed, and all they decide is recorded."""
    go_on, take_over = machine.EngineMachine.go_on, machine.take_over
    journals: dict[int, tuple[State, Journal]] = {}  # of several servers each has its own

    def began(state: State, snapshot: Snapshot, now: int, *, unclean: bool = False) -> None:
        journal = Journal(folder, file_bytes_max, 1_000 * PLENTY)
        journal.begin(snapshot, now, state.settings, unclean=unclean)
        journals[id(state)] = (state, journal)

    def taken_over(state: State, now: int, *, unclean: bool) -> None:
        began(state, Snapshot(state.revision, records_of(state)), now, unclean=unclean)
        take_over(state, now, unclean=unclean)

    def went_on(server: machine.EngineMachine) -> list[machine.Effect]:
        effects = go_on(server)
        decided = server.deciding or effects[0]
        if not isinstance(effects[-1], machine.Pause):
            assert isinstance(decided, machine.Act)
            journals[id(server.state)][1].record(server.state, decided.batch, decided.done.changes)
        return effects

    monkeypatch.setattr(machine.EngineMachine, "go_on", went_on)
    monkeypatch.setattr(machine, "take_over", taken_over)
    assert not simulate(seed).trouble
    for _, journal in journals.values():
        assert journal._file is not None
        journal.close()
    monkeypatch.undo()
