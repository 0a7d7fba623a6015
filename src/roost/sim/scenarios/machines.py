"""Virtual machines in a simulated world: power commands at random times, new sizes, and late consent to moves."""

from typing import Any

from roost.drivers.fake import ScriptedAct
from roost.model.events import SetPower
from roost.model.states import ONE_SHOT, PowerAction
from roost.sim.checks.oracle import Oracle
from roost.sim.world.clients import Clients
from roost.sim.world.world import SideChance, World

LIKELY = 0.3  # of worlds
OFFER = ("image/linux",)
ACTIONS = (*PowerAction, PowerAction.STOP, PowerAction.START, PowerAction.STOP)


def has_machines(world: World) -> bool:
    return SideChance(f"machines {world.seed}").happens(LIKELY)


def plan_machines(world: World, clients: Clients, truth: Oracle, until_ms: int) -> None:
    chance = SideChance(f"machines {world.seed}")
    if not chance.happens(LIKELY):
        return
    for number in range(chance.between(1, 3)):
        raw = _machine(chance, f"vm{number}")
        key = f"default/{raw['name']}"
        truth.ways[key] = [(ScriptedAct(None),)]
        at_ms = chance.between(0, until_ms // 3)
        world.at(at_ms, clients.apply, raw)
        for _ in range(chance.between(2, 20)):
            action = ACTIONS[chance.between(0, len(ACTIONS) - 1)]
            index = chance.between(0, raw["count"] - 1) if chance.happens(0.5) else None
            grace_ms = (None, 0, 300, 5_000)[chance.between(0, 3)]
            when_ms = chance.between(at_ms, until_ms)
            world.at(when_ms, clients.request, SetPower, key, action, index, grace_ms, once=action in ONE_SHOT)
        _plan_changes(world, chance, clients, raw, at_ms, until_ms)


def _plan_changes(
    world: World, chance: SideChance, clients: Clients, raw: dict[str, Any], at_ms: int, until_ms: int
) -> None:  # fmt: skip
    key = f"default/{raw['name']}"
    if chance.happens(0.3):
        bigger = raw | {"resources": raw["resources"] | {"cpu": "750m"}}
        world.at(chance.between(at_ms, until_ms), clients.apply, bigger)
    if chance.happens(0.2):
        world.at(chance.between(at_ms, until_ms), clients.apply, raw | {"move": "cold"})
    if chance.happens(0.15):
        world.at(chance.between(at_ms, until_ms), clients.cancel, key, None)
    if chance.happens(0.25):
        world.at(chance.between(at_ms, until_ms), clients.retry, key, 0)


def _machine(chance: SideChance, name: str) -> dict[str, Any]:
    move = ("live", "live", "never", "cold")[chance.between(0, 3)]
    raw: dict[str, Any] = {
        "name": name,
        "kind": "vm",
        "vm": {"kernel": "linux"},
        "count": chance.between(1, 2),
        "resources": {"cpu": ("250m", "500m", 1)[chance.between(0, 2)], "memory": "64MiB"},
        "grace": ("0s", "500ms", "3s")[chance.between(0, 2)],
        "priority": (10, 50)[chance.between(0, 1)],
        "move": move,
    }
    if chance.happens(0.4):
        raw["when_lost"] = "reschedule"
    if move == "cold" and chance.happens(0.5):
        raw["preemptible"] = True
    return raw
