"""Containers in a simulated world: jobs and services with images that are here, come slowly, or do not come."""

from roost.drivers.fake import ScriptedAct
from roost.sim.checks.oracle import Oracle
from roost.sim.world.clients import Clients
from roost.sim.world.engine import ABSENT, SimulatedEngine
from roost.sim.world.world import SideChance, World

IMAGES = ("foreign:1", "small:1", "small:2", "team/large:1")
AWAY_MS = (300, 6_000)


def plan_containers(
    world: World, chance: SideChance, clients: Clients, truth: Oracle, engines: list[SimulatedEngine], until_ms: int
) -> None:
    for number in range(chance.between(2, 7)):
        is_service = chance.happens(0.3)
        is_absent = not is_service and chance.happens(0.15)
        raw = {
            "name": f"box{number}",
            "project": "default",
            "kind": "service" if is_service else "job",
            "command": "work",
            "image": ABSENT if is_absent else IMAGES[chance.between(0, len(IMAGES) - 1)],
            "count": chance.between(1, 2),
            "resources": {"cpu": "250m", "memory": 0},
            "grace": "200ms",
            "fenced": chance.happens(0.7),
            "retries": {"max": chance.between(0, 4), "on": ["lost", "failed"]},
        }
        act = ScriptedAct(None) if is_service else ScriptedAct(chance.between(1, 3_000), int(chance.happens(0.2)))
        truth.ways[f"default/{raw['name']}"] = [(act,)]
        at_ms = chance.between(0, until_ms * 9 // 10)
        world.at(at_ms, clients.submit, raw)
        if chance.happens(0.3):
            world.at(chance.between(at_ms, until_ms), clients.cancel, f"default/{raw['name']}", None)
    for engine in engines:
        if chance.happens(0.4):
            world.at(chance.between(0, until_ms), engine.fail, chance.between(*AWAY_MS), world)
