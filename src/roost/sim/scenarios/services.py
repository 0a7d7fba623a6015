"""Themes of a simulated world: rollouts of services, dependencies, schedules, failing pools, operators.

Each world has some of these themes, or none. The command of a version says what it does: `work` goes as the ways of its
workload say, `crash` ends badly soon, as long as there are faults, and `crash forever` also after that.
"""

from typing import Any, NamedTuple

from roost.drivers.fake import ScriptedAct
from roost.model.events import Cordon, Maintain, MarkPool, Promote, RunNow, SetPool, Uncordon
from roost.model.records.project import Pool
from roost.sim.checks.oracle import Oracle
from roost.sim.world.clients import Clients
from roost.sim.world.world import World

SPARE = "spare"  # the pool of every other host
MINUTE_MS = 60_000
LIKELY = 0.45  # each theme, in worlds of odd seeds; the others have none


class Themes(NamedTuple):
    """What a world is about, besides plain jobs and services."""

    updates: bool = False
    order: bool = False
    schedules: bool = False
    pools: bool = False
    operators: bool = False


def draw_themes(world: World) -> Themes:
    if world.seed % 2 == 0:
        return Themes()
    return Themes(*(world.happens(LIKELY) for _ in Themes._fields))


def plan_living(
    world: World, themes: Themes, clients: Clients, truth: Oracle, nodes: list[str], until_ms: int
) -> list[str]:
    """Schedule the requests of users. Returns the keys of services that are updated."""
    services = []
    if themes.updates:
        for number in range(world.between(1, 2)):
            services.append(_plan_service(world, clients, truth, f"live{number}", until_ms))
    if themes.order:
        _plan_chain(world, clients, truth, services, until_ms)
    if themes.schedules:
        for number in range(world.between(1, 2)):
            _plan_schedule(world, clients, truth, f"tick{number}", until_ms)
    if themes.pools:
        _plan_pools(world, clients, until_ms)
    if themes.operators:
        _plan_operators(world, clients, nodes, until_ms)
    return services


# services


def service(world: World, name: str) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "name": name,
        "kind": "service",
        "command": "work",
        "count": world.between(1, 4),
        "resources": {"cpu": world.one_of(("100m", "250m", "500m", 1)), "memory": 0},
        "grace": world.one_of(("0s", "200ms", "1s", "3s")),
        "fenced": world.happens(0.7),
        "when_lost": world.one_of(("reschedule", "reschedule", "reschedule", "pin")),
        "update": update(world),
        "restart": {"pause": world.one_of(("100ms", "1s")), "pause_max": "5s"},
    }
    if world.happens(0.6):
        raw["health"] = {
            "command": "check",
            "interval": world.one_of(("200ms", "500ms", "1s")),
            "successes": world.between(1, 2),
            "failures": world.between(1, 3),
            "start": world.one_of(("1s", "3s", "30s")),
            "restart": world.happens(0.6),
        }
    return raw


def update(world: World) -> dict[str, Any]:
    unavailable = world.one_of((0, 1, 1, 2, "25%", "50%"))
    return {
        "max_unavailable": unavailable,
        "max_surge": world.one_of((0, 0, 1, 2, "50%")) or (0 if unavailable else 1),
        "canary": world.one_of((0, 0, 0, 1, 2)),
        "healthy_after": world.one_of(("0s", "200ms", "1s", "3s")),
        "deadline": world.one_of(("4s", "8s", "30s")),  # longer than any `healthy_after`
        "failures": world.between(1, 3),
        "rollback": world.happens(0.7),
    }


def changed(world: World, raw: dict[str, Any], number: int) -> dict[str, Any]:
    what = world.between(0, 6)
    if what <= 1:
        return raw | {"command": f"work {number}"}
    if what == 2:
        return raw | {"command": f"crash {number}"}
    if what == 3:
        return raw | {"count": world.between(1, 4)}
    if what == 4:
        return raw | {"count": world.between(1, 4), "command": f"work {number}", "update": update(world)}
    if what == 5:
        return raw | {"priority": world.one_of((40, 60)), "update": update(world)}
    return raw | {"placement": {"require": ["zone == 'a'"]} if "placement" not in raw else {}}


def _plan_service(world: World, clients: Clients, truth: Oracle, name: str, until_ms: int) -> str:
    raws = [service(world, name)]
    key = f"default/{name}"
    term_ms = None if world.happens(0.2) else world.between(0, 60)
    steady, brief = ScriptedAct(None, term_ms=term_ms), ScriptedAct(world.between(50, 6_000), 1, term_ms=term_ms)
    truth.ways[key] = [(act,) for act in (steady, steady, steady, steady, brief)]
    at_ms = world.between(0, until_ms // 3)
    world.at(at_ms, clients.apply, raws[0])
    for number in range(2, world.between(2, 6)):
        raw = world.one_of(raws) if len(raws) > 1 and world.happens(0.25) else changed(world, raws[-1], number)
        raws.append(raw)
        at_ms = world.between(at_ms, until_ms)
        world.at(at_ms, clients.apply, raw)
    for _ in range(world.between(0, 3)):
        world.at(world.between(at_ms // 2, until_ms), clients.request, Promote, key)
    if world.happens(0.3):
        world.at(world.between(at_ms // 2, until_ms), clients.rollback, key, world.one_of((0, 0, 1, 2)))
    if world.happens(0.15):
        world.at(world.between(at_ms, until_ms), clients.cancel, key, world.one_of((None, 0)))
    return key


# order and repetition


def _plan_chain(world: World, clients: Clients, truth: Oracle, services: list[str], until_ms: int) -> None:
    count = world.between(1, 3)
    raws: list[dict[str, Any]] = []
    for number in range(world.between(2, 6)):
        raw = _link(world, f"link{number}", count, [element["name"] for element in raws], services)
        _give_ways(world, truth, f"default/{raw['name']}")
        raws.append(raw)
    at_ms, together = world.between(0, until_ms // 2), world.between(1, len(raws))
    world.at(at_ms, clients.apply, *raws[:together])
    for raw in raws[together:]:
        at_ms = world.between(at_ms, until_ms)
        world.at(at_ms, clients.apply, raw)
    for raw in raws:
        key = f"default/{raw['name']}"
        if world.happens(0.2):
            world.at(world.between(at_ms, until_ms), clients.retry, key, None, failed=world.happens(0.5))
        if world.happens(0.1):
            world.at(world.between(at_ms, until_ms), clients.cancel, key, world.one_of((None, 0)))
        if world.happens(0.1):
            world.at(world.between(at_ms, until_ms), clients.apply, raw | {"priority": 60, "command": "work 2"})


def _link(world: World, name: str, count: int, before: list[str], services: list[str]) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "name": name,
        "command": "work",
        "resources": {"cpu": world.one_of(("100m", "500m", 1)), "memory": 0},
        "grace": "200ms",
        "fenced": world.happens(0.7),
        "retries": {"max": world.between(0, 2), "on": ["lost", "failed"]},
        "retention": world.one_of(("1s", "1h", "1h")),
    }
    if world.happens(0.2):
        raw["each"] = [str(number) for number in range(count)]
    else:
        raw["count"] = count
    conditions: list[Any] = []
    for other in before[-3:]:
        if world.happens(0.6):
            when = world.one_of(("succeeded", "succeeded", "finished", "started"))
            conditions.append({"workload": other, "when": when, "each": world.happens(0.4)})
    if services and world.happens(0.3):
        conditions.append(services[0].partition("/")[2])
    if conditions:
        raw["after"] = conditions
    if world.happens(0.1):
        raw["queue_timeout"] = "3s"
    if world.happens(0.1):
        raw["deadline"] = "10s"
    return raw


def _plan_schedule(world: World, clients: Clients, truth: Oracle, name: str, until_ms: int) -> None:
    schedule = {
        "cron": world.one_of(("* * * * *", "* * * * *", "*/2 * * * *", "*/7 * * * *")),
        "zone": world.one_of(("UTC", "Europe/Berlin", "Asia/Kolkata")),
        "overlap": world.one_of(("skip", "allow", "wait", "replace")),
        "catch_up": world.between(0, 3),
        "history_limit": world.between(0, 3),
    }
    raw = _link(world, name, world.between(1, 2), [], []) | {"schedule": schedule}
    _give_ways(world, truth, f"default/{name}")
    at_ms = world.between(0, until_ms // 2)
    world.at(at_ms, clients.apply, raw)
    if world.happens(0.3):
        other = raw | {"schedule": schedule | {"catch_up": 2, "cron": world.one_of(("* * * * *", "*/3 * * * *"))}}
        world.at(world.between(at_ms, until_ms), clients.apply, world.one_of((other, raw | {"command": "work 2"})))
    if world.happens(0.3):
        world.at(world.between(at_ms, until_ms), clients.request, RunNow, f"default/{name}", once=True)
    if world.happens(0.15):
        world.at(world.between(at_ms, until_ms), clients.cancel, f"default/{name}", None)
        world.at(world.between(at_ms, until_ms), clients.retry, f"default/{name}", None)


def _give_ways(world: World, truth: Oracle, key: str) -> None:
    longest = world.one_of((50, 1_000, 4_000))
    term_ms = None if world.happens(0.2) else world.between(0, 60)
    truth.ways[key] = [
        (ScriptedAct(world.between(1, longest), world.one_of((0, 0, 0, 0, 1)), term_ms=term_ms),) for _ in range(3)
    ]


# operators


def _plan_pools(world: World, clients: Clients, until_ms: int) -> None:
    pool = Pool(
        SPARE,
        when_failed=world.one_of(("move", "move", "cancel")),
        fallback=world.one_of(("", "default")),
        fail_after_ms=world.one_of((0, 1_000, 3_000, 8_000)),
    )
    at_ms = world.between(0, until_ms // 3)
    world.at(at_ms, clients.request, SetPool, pool)
    for _ in range(world.between(0, 4)):
        status = world.one_of(("failed", "failed", "draining", "ready"))
        world.at(world.between(at_ms, until_ms), clients.request, MarkPool, SPARE, status, "fire")


def _plan_operators(world: World, clients: Clients, nodes: list[str], until_ms: int) -> None:
    for _ in range(world.between(0, 2)):
        at_ms = world.between(0, until_ms)
        world.at(at_ms, clients.request, Maintain, True, "work on the racks", world.one_of((0, 0, 500, 4_000)))
        if world.happens(0.7):
            world.at(world.between(at_ms, until_ms), clients.request, Maintain, False)
    for node in nodes:
        if world.happens(0.3):
            at_ms = world.between(0, until_ms)
            world.at(at_ms, clients.request, Cordon, node)
            if world.happens(0.5):
                world.at(world.between(at_ms, until_ms), clients.request, Uncordon, node)
