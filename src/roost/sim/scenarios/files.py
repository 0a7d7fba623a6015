"""Files in a simulated world: jobs that leave outputs, and jobs and services whose inputs these are, or that were sent.

Builds run again and are forgotten soon, while the others still use what they left.
"""

from typing import Any

from roost.drivers.fake import ScriptedAct
from roost.sim.checks.oracle import Oracle
from roost.sim.world.clients import Clients
from roost.sim.world.file_sets import set_of
from roost.sim.world.world import SideChance, World

PATTERN = "out/**"


def plan_files(world: World, chance: SideChance, clients: Clients, truth: Oracle, until_ms: int) -> None:
    for number in range(chance.between(0, 12)):  # the same few sets come and go
        raw = _plain(chance, f"sent{number}", "job") | {"inputs": _sent(chance), "retention": "0s"}
        truth.ways[f"default/{raw['name']}"] = [(ScriptedAct(chance.between(1, 300), 0),)]
        world.at(chance.between(0, until_ms), clients.apply, raw)
    for number in range(chance.between(1, 3)):
        names = [f"build{number}", *([f"more{number}"] if chance.happens(0.5) else [])]
        builds = [_build(chance, name) for name in names]
        users = [_user(chance, f"use{number}x{index}", builds) for index in range(chance.between(1, 2))]
        for raw in (*builds, *users):
            acts = [ScriptedAct(chance.between(1, 1_500), int(chance.happens(0.3))) for _ in range(3)]
            if raw["kind"] == "service":
                acts.append(ScriptedAct(None))
            truth.ways[f"default/{raw['name']}"] = [(act,) for act in acts]
        at_ms = chance.between(0, until_ms // 2)
        world.at(at_ms, clients.apply, *builds, *users)
        for raw in builds:
            key = f"default/{raw['name']}"
            for _ in range(chance.between(0, 2)):
                world.at(chance.between(at_ms, until_ms), clients.retry, key, 0)
            if chance.happens(0.4):
                world.at(chance.between(at_ms, until_ms), clients.apply, raw | {"labels": {"again": "1"}})
        for raw in users:
            if chance.happens(0.4):
                changed = raw | {"labels": {"changed": "1"}}
                world.at(chance.between(at_ms, until_ms), clients.apply, changed)
            if chance.happens(0.3):
                world.at(chance.between(at_ms, until_ms), clients.retry, f"default/{raw['name']}", None)


def _build(chance: SideChance, name: str) -> dict[str, Any]:
    required = chance.happens(0.3)
    when = "success" if chance.happens(0.3) else "always"
    return {
        **_plain(chance, name, "job"),
        "count": 1 + chance.between(0, 2) * chance.happens(0.4),
        "outputs": [{"path": PATTERN, "required": required, "when": when}],
        "inputs": _sent(chance) if chance.happens(0.5) else [],
        "retention": ("0s", "500ms", "2s", "7d")[chance.between(0, 3)],
    }


def _user(chance: SideChance, name: str, builds: list[dict[str, Any]]) -> dict[str, Any]:
    kind = "service" if chance.happens(0.4) else "job"
    raw = _plain(chance, name, kind)
    raw["inputs"] = [{"workload": build["name"], "to": build["name"]} for build in builds]
    if chance.happens(0.5):
        raw["inputs"] += _sent(chance)
    if kind == "job" and chance.happens(0.5):
        raw["outputs"] = [PATTERN]
    first = builds[0]
    if kind == "job" and first["count"] > 1 and chance.happens(0.5):
        raw |= {"count": first["count"], "after": [{"workload": first["name"], "each": True}]}
    elif chance.happens(0.4):
        raw["after"] = [{"workload": build["name"], "when": "finished"} for build in builds]
    return raw


def _plain(chance: SideChance, name: str, kind: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "command": "work",
        "resources": {"cpu": "250m", "memory": 0},
        "grace": "200ms",
        "fenced": chance.happens(0.7),
        "retries": {"max": chance.between(0, 3), "on": ["lost", "failed"]},
    }


def _sent(chance: SideChance) -> list[dict[str, Any]]:
    return [{"from": set_of(f"sent {chance.between(0, 3)}").digest, "to": "sent"}]
