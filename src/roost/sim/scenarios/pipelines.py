"""Pipelines in a simulated world: actions with conditions and approval, their services, and runs that supersede others.

Some runs are approved early, some late, some only by the operator who comes when faults have ended.
"""

from typing import Any

from roost.drivers.fake import ScriptedAct
from roost.sim.checks.oracle import Oracle
from roost.sim.world.clients import Clients
from roost.sim.world.world import SideChance, World

LIKELY = 0.3  # of worlds
Raw = dict[str, Any]


def plan_pipelines(world: World, clients: Clients, truth: Oracle, until_ms: int) -> None:
    chance = SideChance(f"pipelines {world.seed}")
    if not chance.happens(LIKELY):
        return
    for number in range(chance.between(1, 2)):
        group = {"concurrency": {"group": f"pipe{number}", "cancel": True}} if chance.happens(0.6) else {}
        at_ms = chance.between(0, until_ms // 2)
        for turn in range(chance.between(1, 3)):
            raws = _run(chance, f"p{number}r{turn}", group)
            for raw in raws:
                truth.ways[_key(raw)] = _ways(chance, raw["kind"])
            world.at(at_ms, clients.apply, *raws)
            _plan_requests(world, chance, clients, raws, at_ms, until_ms)
            at_ms = chance.between(at_ms, until_ms)


def _run(chance: SideChance, name: str, group: Raw) -> list[Raw]:
    """A build, a test with or without a service, and a deployment."""
    build, test, deploy = (_plain(chance, f"{name}{action}") | group for action in ("build", "test", "deploy"))
    needs = {"workload": build["name"], "when": _one_of(chance, "succeeded", "finished", "finished")}
    test |= _gates(chance, build["name"]) | {"after": [needs], "count": chance.between(1, 2)}
    deploy |= _gates(chance, build["name"]) | {"after": [needs, {"workload": test["name"], "when": "finished"}]}
    if chance.happens(0.3):
        return [build, test, deploy]
    service = _plain(chance, f"{name}service") | {"kind": "service", "until": test["name"], "after": [needs]}
    del service["retries"], service["retention"]
    if chance.happens(0.5):
        service["health"] = {"command": "check", "interval": "200ms", "start": "3s"}
    test["after"] = [needs, {"workload": service["name"], "when": "started"}]
    return [build, service, test, deploy]


def _gates(chance: SideChance, build: str) -> Raw:
    found: Raw = {}
    if chance.happens(0.6):
        go = _one_of(chance, "yes", "no")
        rules = (f"needs.{build}.state == 'succeeded'", f"needs.{build}.result != null", "env.GO == 'yes'")
        found |= {"if": _one_of(chance, *rules), "env": {"GO": go}}
    if chance.happens(0.4):
        found["approve"] = {"role": "operator"}
    return found


def _plan_requests(
    world: World, chance: SideChance, clients: Clients, raws: list[Raw], at_ms: int, until_ms: int
) -> None:  # fmt: skip
    services = [_key(raw) for raw in raws if raw["kind"] == "service"]
    for raw in raws:
        for _ in range(chance.between(0, 3) if "approve" in raw else 0):
            world.at(chance.between(at_ms, until_ms), clients.approve, _key(raw))
        if chance.happens(0.15):
            world.at(chance.between(at_ms, until_ms), clients.cancel, _key(raw), None)
        if chance.happens(0.3):
            also = services if "after" in raw and raw["kind"] == "job" else []
            world.at(chance.between(at_ms, until_ms), clients.retry, _key(raw), None, also=also)


def _plain(chance: SideChance, name: str) -> Raw:
    return {
        "name": name,
        "kind": "job",
        "command": "work",
        "resources": {"cpu": "100m", "memory": 0},
        "grace": "200ms",
        "fenced": chance.happens(0.7),
        "retries": {"max": chance.between(0, 2), "on": ["lost", "failed"]},
        "retention": _one_of(chance, "1s", "1h", "1h"),
    }


def _ways(chance: SideChance, kind: str) -> list[tuple[ScriptedAct, ...]]:
    acts = [ScriptedAct(chance.between(1, 2_000), int(chance.happens(0.3))) for _ in range(3)]
    return [(act,) for act in ([ScriptedAct(None), ScriptedAct(None), acts[0]] if kind == "service" else acts)]


def _key(raw: Raw) -> str:
    return f"default/{raw['name']}"


def _one_of(chance: SideChance, *values: str) -> str:
    return values[chance.between(0, len(values) - 1)]
