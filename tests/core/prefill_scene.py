"""Scenes in which runs of a line have proved to be short, so that they stand behind each other."""

from typing import Any

from roost.core.orders import run_order
from roost.core.state.outcome import Step
from roost.model.protocol import Report, Run
from tests.core.scene import Scene, job, short

Reported = tuple[Run, Report]


def brief(*names: str, length_ms: int = 25, cpu: float = 1, warm: dict[str, Any] | None = None, **more: Any) -> Scene:
    """Nodes on which a run of the line has taken so long; of 25 ms, two may stand behind a run."""
    scene = Scene(*names or ("a",), cpu=cpu, **more)
    prove(scene, length_ms, **warm or {})
    return scene


def prove(scene: Scene, length_ms: int = 25, **fields: Any) -> None:
    """Let a run of a line take so long."""
    scene.submit(job("warm", **fields))
    scene.ended(f"{fields.get('project', 'default')}/warm.0", started_ago_ms=length_ms)


def end(scene: Scene, name: str, **fields: Any) -> Step:
    return scene.ended(name, **{"started_ago_ms": 25} | fields)


def chain(scene: Scene, head: str) -> list[str]:
    """The prefilled instances behind one, next one first."""
    found, instance = [], scene.instance(head)
    while (follower := scene.state.prefilled.get(instance.token)) is not None:
        instance = follower
        found.append(short(instance.key))
    return found


def waiting(scene: Scene, name: str) -> Reported:
    """What an agent tells of a run that has not begun."""
    instance = scene.instance(name)
    return run_order(scene.state, instance), Report(instance.token, "starting")


def ordered(done: Step, what: type = Run) -> list[Any]:
    return [order for orders in done.assignments for order in orders.orders if isinstance(order, what)]


def charged(scene: Scene, project: str = "default") -> int:
    return scene.state.project_usage.get(project, {}).get("instances", 0)
