"""Clients of the simulated server: they ask over a network that loses answers, and remember what they were told."""

from collections.abc import Callable
from typing import Any

from roost.model.errors import Conflict, NoService, RoostError
from roost.model.events import (
    Cancel,
    Cordon,
    Drain,
    Event,
    Maintain,
    MarkPool,
    Promote,
    Remove,
    Reserve,
    Resume,
    Retry,
    Rollback,
    RunNow,
    SetPool,
    SetProject,
    Submit,
    Unset,
    Wanted,
)  # fmt: skip
from roost.model.project import Pool, Project, Reservation
from roost.model.submission import wanted_of
from roost.sim.checkers import Checkers
from roost.sim.team import Team
from roost.sim.world import World

DELAY_MS = (1, 40)
AGAIN_MS = (300, 2_000)  # a client without an answer, or with a no for now, asks again


Make = Callable[[int], Event]
Told = Callable[[Any], None]


def _nothing() -> None:
    return


class Clients:
    """Everybody who uses the API."""

    def __init__(self, world: World, server: Team, checkers: Checkers) -> None:
        self._world = world
        self._server = server
        self._checkers = checkers
        self.answers_lost = 0.0
        self.given: dict[str, Wanted] = {}  # what was asked for, told or not
        self.pending = 0  # requests whose client still wants an answer

    def submit(self, raw: dict[str, Any]) -> None:
        """Hand in a workload, again and again until there is an answer."""
        wanted = wanted_of(raw)
        key = f"{wanted.project}/{wanted.name}"
        if key in self.given:
            self._checkers.replaces(key)
        self.given[key] = wanted
        self._world.tell("client", f"submits {raw}")

        def told(value: Any) -> None:
            if isinstance(value, Conflict):
                self._world.tell("client", f"{key} is in use")
                return
            assert value == (key,), f"submitting {key} was answered with {value!r}"
            self._checkers.answered_submit(key)

        self._ask(lambda request: Submit(request, (wanted,), same_ok=True), told, lambda: self._checkers.replaces(key))

    def apply(self, *raws: dict[str, Any]) -> None:
        """Hand in workloads that may be there already as something else: all of them are taken in, or none."""
        wanted = tuple(map(wanted_of, raws))
        keys = tuple(f"{each.project}/{each.name}" for each in wanted)
        self._world.tell("client", f"applies {raws}")

        def told(value: Any) -> None:
            if isinstance(value, RoostError):
                self._world.tell("client", f"{keys} were refused: {value}")
                return
            assert value == keys, f"applying {keys} was answered with {value!r}"
            for key in keys:
                self._checkers.answered_submit(key)

        def again() -> None:
            for key in keys:
                self._checkers.replaces(key)

        again()
        self._ask(lambda request: Submit(request, wanted, same_ok=True), told, again)

    def promote(self, key: str) -> None:
        """The canaries of a service are good."""
        self._tell_server(f"promotes {key}", lambda request: Promote(request, key))

    def rollback(self, key: str, version: int) -> None:
        """Take a service back to an earlier version."""
        self._checkers.replaces(key)
        self._tell_server(f"rolls {key} back to {version}", lambda request: Rollback(request, key, version))

    def run_now(self, key: str) -> None:
        """Let a schedule run besides its ticks; asked once, as every answer would be another run."""
        self._world.tell("client", f"runs {key} now")
        self._ask(lambda request: RunNow(request, key), lambda value: None, None)

    def cordon(self, node: str) -> None:
        """Let nothing new come to a node."""
        self._tell_server(f"cordons {node}", lambda request: Cordon(request, node))

    def maintain(self, *, on: bool, for_ms: int = 0) -> None:
        """Begin or end maintenance."""
        self._tell_server(
            f"maintains {on} {for_ms}", lambda request: Maintain(request, on, "work on the racks", for_ms)
        )

    def set_pool(self, pool: Pool) -> None:
        """Say what the nodes of a pool have in common."""
        self._tell_server(f"sets {pool}", lambda request: SetPool(request, pool))

    def mark_pool(self, name: str, status: str) -> None:
        """Say that a pool has failed, is to be emptied, or is well again."""
        self._tell_server(f"marks pool {name} {status}", lambda request: MarkPool(request, name, status, "fire"))

    def _tell_server(self, words: str, make: Make) -> None:
        self._world.tell("client", words)
        self._ask(make, lambda value: self._world.tell("client", f"was told {value}"))

    def cancel(self, key: str, index: int | None) -> None:
        """Stop a workload or an instance."""
        whole = key if index is None else f"{key}.{index}"
        self._world.tell("client", f"cancels {whole}")

        def told(value: Any) -> None:
            if not isinstance(value, RoostError):
                self._checkers.answered_cancel(whole)

        self._ask(lambda request: Cancel(request, key, index), told)

    def retry(self, key: str, index: int | None, *, failed: bool = False) -> None:
        """Run something again."""
        self._world.tell("client", f"retries {key} {index}{' if it failed' * failed}")
        self._checkers.asks_retry(key)
        self._ask(lambda request: Retry(request, key, index, failed), lambda value: None, None)

    def drain(self, node: str, deadline_ms: int) -> None:
        """Take a node out of service."""
        self._world.tell("client", f"drains {node} within {deadline_ms} ms")
        self._checkers.asks_drain(node, deadline_ms)
        self._ask(lambda request: Drain(request, node, deadline_ms), lambda value: None)

    def resume(self, node: str) -> None:
        """Put a node back into service."""
        self._world.tell("client", f"resumes {node}")
        self._ask(lambda request: Resume(request, node), lambda value: None)

    def remove(self, node: str) -> None:
        """Forget a node."""
        self._world.tell("client", f"removes {node}")
        self._ask(lambda request: Remove(request, node), lambda value: None, None)

    def set_project(self, project: Project) -> None:
        """Give a project a weight and a quota."""
        self._world.tell("client", f"sets {project}")
        self._ask(lambda request: SetProject(request, project), lambda value: None)

    def reserve(self, name: str, project: str, count: int, after_ms: int, for_ms: int) -> None:
        """Set nodes aside for a project, from some time on and for some time."""
        self._world.tell("client", f"reserves {count} nodes for {project} in {after_ms} ms for {for_ms} ms as {name}")
        start = self._server.clock.now_ms() + after_ms
        wanted = Reservation(name, project, (), start, start + for_ms)
        self._ask(lambda request: Reserve(request, wanted, count), lambda value: None)

    def unset(self, kind: str, name: str) -> None:
        """Take back what was set."""
        self._world.tell("client", f"unsets {kind} {name}")
        self._ask(lambda request: Unset(request, kind, name), lambda value: None)

    def _ask(self, make: Make, told: Told, again: Callable[[], None] | None = _nothing) -> None:
        """`again` is called before the same is asked once more; None: this client asks only once."""
        self.pending += 1
        self._send(make, told, again)

    def _send(self, make: Make, told: Told, again: Callable[[], None] | None) -> None:
        world = self._world
        waiting = [True]

        def heard(value: Any) -> None:
            if not waiting:
                return
            waiting.clear()
            if again is not None and (isinstance(value, NoService) or value is None):
                world.after(world.between(*AGAIN_MS), once_more)
                return
            self.pending -= 1
            told(value)

        def once_more() -> None:
            assert again is not None
            again()
            self._send(make, told, again)

        def answered(value: Any) -> None:
            if not world.happens(self.answers_lost):
                world.after(world.between(*DELAY_MS), heard, value)

        world.after(world.between(*DELAY_MS), self._server.ask, make, answered)
        world.after(AGAIN_MS[1] * 2, heard, None)
