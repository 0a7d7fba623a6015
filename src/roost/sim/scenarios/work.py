"""The workload of a simulated world: hosts, workloads of every kind, and the requests of users and operators."""

from typing import Any

from roost.core.placement.strategies import STRATEGIES
from roost.drivers.fake import ScriptedAct
from roost.model.events import Remove, SetProject, Uncordon, Unset
from roost.model.records.node import Facts
from roost.model.records.project import Project
from roost.sim.checks.oracle import Oracle
from roost.sim.world.clients import Clients
from roost.sim.world.host import SimulatedHost
from roost.sim.world.world import PROJECTS, World

ANCHOR_CPU = 4  # the host that always comes back: whatever is placeable at all is placeable there
GIB = 1 << 30


def facts_of(world: World, number: int, pool: str) -> Facts:
    cpu = ANCHOR_CPU if number == 0 else world.one_of((1, 1, 2, 2, 3, 4))
    return Facts({"cpu": cpu * 1_000, "memory": cpu * GIB}, zone=world.one_of(("a", "b")), pool=pool)


def plan_work(
    world: World, clients: Clients, truth: Oracle, hosts: list[SimulatedHost], until_ms: int, most: int
) -> None:
    names = []
    for number in range(world.between(most // 5, most)):
        raw = workload(world, f"w{number}")
        key = f"{raw['project']}/{raw['name']}"
        truth.ways[key] = [way(world, raw["kind"], len(raw.get("steps", "1"))) for _ in range(3)]
        at_ms = world.between(0, until_ms * 9 // 10)
        world.at(at_ms, clients.submit, raw)
        names.append((key, raw, at_ms))
    plan_settings(world, clients, until_ms)
    for key, raw, at_ms in names:
        if world.happens(0.3):
            index = world.between(0, raw["count"] - 1) if world.happens(0.4) else None
            world.at(world.between(at_ms, until_ms), clients.cancel, key, index)
        if world.happens(0.12):
            index = world.between(0, raw["count"] - 1) if world.happens(0.5) else None
            world.at(world.between(at_ms, until_ms), clients.retry, key, index)
        if world.happens(0.08):
            world.at(world.between(at_ms, until_ms), clients.submit, raw)
    for host in hosts:
        if world.happens(0.25):
            at_ms = world.between(0, until_ms)
            world.at(at_ms, clients.drain, host.node, world.one_of((0, 0, 500, 3_000)))
            if world.happens(0.6):
                world.at(world.between(at_ms, until_ms), clients.request, Uncordon, host.node)
        if world.happens(0.1):
            world.at(world.between(0, until_ms), clients.request, Remove, host.node, once=True)


def plan_settings(world: World, clients: Clients, until_ms: int) -> None:
    for name in PROJECTS[1:]:
        for _ in range(world.one_of((0, 0, 1, 2))):
            quota = {"cpu": world.between(1, 5) * 1_000, "instances": world.between(1, 4)}
            project = Project(name, world.between(1, 3), quota, world.happens(0.4), world.happens(0.1))
            world.at(world.between(0, until_ms), clients.request, SetProject, project)
        if world.happens(0.15):
            at_ms = world.between(0, until_ms)
            window = (world.between(0, 4_000), world.between(500, 8_000))
            world.at(at_ms, clients.reserve, f"for-{name}", name, world.between(1, 2), *window)
            if world.happens(0.4):
                world.at(world.between(at_ms, until_ms), clients.request, Unset, "reservation", f"for-{name}")


def workload(world: World, name: str) -> dict[str, Any]:
    kind = "service" if world.happens(0.2) else "job"
    raw: dict[str, Any] = {
        "name": name,
        "project": world.one_of(PROJECTS),
        "kind": kind,
        "count": world.one_of((1, 1, 1, 2, 3, 6) if kind == "job" else (1, 1, 2, 3)),
        "resources": {"cpu": world.one_of(("500m", 1, 1, 1, 2, 3)), "memory": world.one_of((0, "256MiB", "1GiB"))},
        "priority": world.one_of((10, 50, 50, 50, 90)),
        "grace": world.one_of(("0s", "200ms", "1s", "3s")),
        "fenced": world.happens(0.7),
        "when_lost": world.one_of(("reschedule", "reschedule", "reschedule", "reschedule", "fail", "pin")),
        "retries": {"max": world.one_of((0, 1, 2, 3, 10)), "on": ["lost", *world.one_of(ON)]},
        "placement": {"strategy": world.one_of(("", "", *sorted(STRATEGIES)))},
    }
    if kind == "job" and world.happens(0.2):
        raw["steps"] = [{"run": "work"}] * world.between(2, 3)
    else:
        raw["command"] = "work"
    if world.happens(0.12):
        raw |= {"gang": True, "count": 2}
        raw["resources"]["cpu"] = world.one_of(("500m", 1, 2))  # all of it fits on the anchor
    elif world.happens(0.04):
        raw["resources"]["cpu"] = ANCHOR_CPU * 4
    elif world.happens(0.05):
        raw["placement"]["per_node"] = 1
    if world.happens(0.1):
        raw["preemptible"] = False
    if world.happens(0.05):
        raw["ports"] = {"http": 8080, "any": 0} if raw["count"] == 1 else {"any": 0}
    if world.happens(0.1) and "gang" not in raw:
        raw["placement"]["require"] = ["zone == 'a'"]
    if kind == "job" and world.happens(0.25):
        raw["timeout"] = world.one_of(("300ms", "1s", "3s"))
    if world.happens(0.12):
        raw["queue_timeout"] = world.one_of(("500ms", "2s", "8s"))
    if world.happens(0.08):
        raw["deadline"] = world.one_of(("1s", "5s", "12s"))
    if world.happens(0.08):
        raw["when_full"] = "reject"
    if world.happens(0.15):
        raw["retention"] = world.one_of(("0s", "1s", "5s"))
    return raw


ON: tuple[tuple[str, ...], ...] = ((), (), ("failed",), ("exit:1",), ("timed_out", "exit:2"))


def way(world: World, kind: str, steps: int) -> tuple[ScriptedAct, ...]:
    """One script for the runs of a workload: what each step does."""
    term_ms = None if world.happens(0.25) else world.between(0, 60)
    if kind == "service" and world.happens(0.8):
        return (ScriptedAct(None, term_ms=term_ms),)
    acts = []
    for _ in range(steps):
        error = "no such program" if world.happens(0.03) else ""
        longest = world.one_of((20, 300, 2_000, 5_000, 12_000)) // steps
        acts.append(ScriptedAct(world.between(1, longest), world.one_of((0, 0, 0, 1, 2)), term_ms=term_ms, error=error))
    return tuple(acts)
