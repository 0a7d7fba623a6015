"""Scenes with pools: nodes by pool, settings, and how a pool stands."""

from typing import Any

from roost.core.state.outcome import Step
from roost.model.events import MarkPool, SetPool, SetProject
from roost.model.records.project import Pool, Project
from tests.core.scene import Scene

CI = {"placement": {"pool": "ci"}}


def pool_scene(**pools: tuple[str, ...]) -> Scene:
    """Nodes by pool."""
    scene = Scene()
    for pool, names in pools.items():
        for name in names:
            scene.hello(name, pool=pool)
    return scene


def set_pool(scene: Scene, name: str, **fields: Any) -> Step:
    return scene.step(SetPool(1, Pool(name, **fields)))


def set_project(scene: Scene, name: str, **fields: Any) -> Step:
    return scene.step(SetProject(1, Project(name, **fields)))


def mark(scene: Scene, name: str, status: str, reason: str = "") -> Step:
    return scene.step(MarkPool(1, name, status, reason))
