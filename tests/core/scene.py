"""A scene: nodes, a state and a store without a network. Documents go in as plain data; a step comes out as words.

`said(step)` holds everything a step gives back, so comparing it says "this happened, and nothing else".
"""

from typing import Any

import msgspec

from roost.core.assign import run_order
from roost.core.check import check, differences
from roost.core.effects import Step
from roost.core.load import follow, load, mirror, take_over
from roost.core.state import Settings, State
from roost.core.step import step
from roost.model.errors import RoostError
from roost.model.events import (
    Cancel,
    Drain,
    Event,
    Heard,
    Joined,
    Parted,
    Remove,
    Reported,
    Resume,
    Retry,
    Submit,
    Wanted,
)
from roost.model.frames import Drop, Hello, Order, Report, Run, Stop
from roost.model.instance import Instance
from roost.model.node import Facts
from roost.model.submission import wanted_of
from roost.model.units import byte_count, duration_ms
from roost.ports.store import Change
from roost.stores.memory import Memory

BEGINNING_MS = 1_000_000
MEGABYTE = 1_000_000


class Scene:
    """Nodes that are connected, and a server that has made every step durable."""

    def __init__(self, *names: str, cpu: float = 4, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.now = BEGINNING_MS
        self.memory = Memory()
        self.epoch = self.memory.lead("scene")
        self.state: State = load(self.memory.snapshot(), self.now, self.settings)
        self.standby = mirror(self.memory.snapshot(), self.settings)  # another server, which follows
        self.runs: dict[int, Run] = {}  # what agents were told to run, by token
        self.steps: list[Step] = []
        self.checked = True
        self.honest = True  # False: nodes take back what they offered, or run what they said had ended
        for name in names:
            self.hello(name, cpu=cpu)

    # what happens

    def step(self, *events: Event) -> Step:
        """Let events happen now, and make the outcome durable."""
        done = step(self.state, events, self.now)
        if done.changes:
            revision = self.memory.apply(self.epoch, done.changes)
            follow(self.standby, revision, done.changes)
        for orders in done.assignments:
            self.runs |= {order.token: order for order in orders.orders if isinstance(order, Run)}
        self.steps.append(done)
        if self.checked:
            self.check()
        return done

    def check(self) -> None:
        """What must be true after every step, whatever the test is about."""
        complaints = [each for each in check(self.state) if self.honest or not each.startswith("room_is_enough")]
        assert not complaints, "\n".join(complaints)
        snapshot = self.memory.snapshot()
        again = load(snapshot, self.now, self.settings)
        assert differences(self.state, again) == [], "what is stored tells another story"
        standby, self.standby = self.standby, mirror(snapshot, self.settings)
        take_over(standby, self.now)
        assert differences(standby, again) == [], "a standby that takes over would tell another story"

    def wait(self, duration: str, *, silent: str = "") -> Step:
        """Let time pass; every connected node beats, except silent ones."""
        self.now += duration_ms(duration, "wait")
        beats = tuple(
            (name, node.session, self.now)
            for name, node in self.state.nodes.items()
            if self.state.contacts[name].connected and name not in silent.split()
        )
        return self.step(Heard(beats))

    def hello(
        self, name: str, *runs: str | tuple[Run, Report], identity: str = "", sent_ms: int = 0, **offer: Any
    ) -> Step:
        """An agent says hello, running these instances (by name; as their attempts stand) or these very runs."""
        told = tuple(self.as_told(each) if isinstance(each, str) else each for each in runs)
        facts = offer.pop("facts", None) or facts_of(**offer)
        return self.step(Joined(1, Hello(name, identity or f"machine-{name}", facts, sent_ms, told)))

    def submit(self, *documents: dict[str, Any], same_ok: bool = False, must_exist: bool = False) -> Step:
        asked = tuple(wanted(document) for document in documents)
        return self.step(Submit(1, asked, same_ok, must_exist=must_exist))

    def cancel(self, name: str, cause: str = "asked for") -> Step:
        workload, index = parted_name(name)
        return self.step(Cancel(1, workload, index, cause))

    def retry(self, name: str, *, failed: bool = False) -> Step:
        return self.step(Retry(1, *parted_name(name), failed))

    def apply(self, *documents: dict[str, Any]) -> Step:
        """Submit what may be there already: another document makes a new version."""
        return self.submit(*documents, same_ok=True)

    def drain(self, node: str, deadline: str = "0") -> Step:
        return self.step(Drain(1, node, duration_ms(deadline, "deadline")))

    def resume(self, node: str) -> Step:
        return self.step(Resume(1, node))

    def remove(self, node: str) -> Step:
        return self.step(Remove(1, node))

    def part(self, node: str, *, leaving: bool = False) -> Step:
        return self.step(Parted(node, self.state.nodes[node].session, leaving))

    def report(self, node: str, *reports: Report, session: int = 0, lacking: bool = False) -> Step:
        """A node sends these very reports."""
        session = session or self.state.nodes[node].session
        return self.step(Reported(node, session, 1, reports, lacking))

    def running(self, *names: str, **fields: Any) -> Step:
        """Agents report that these instances run."""
        return self._reported(names, "running", fields)

    def ended(self, *names: str, code: int | None = 0, cause: str = "exited", **fields: Any) -> Step:
        """Agents report that these instances have ended, exit code 0 unless told."""
        return self._reported(names, "ended", fields | {"cause": cause, "code": code})

    def stopped(self, *names: str) -> Step:
        """Agents confirm that these instances were stopped."""
        return self.ended(*names, cause="stopped", code=None, signal=15)

    def restart(self, *, forgetful: bool = False) -> None:
        """A new server on the same store; forgetful: on an empty one, as after a restart with the memory store."""
        if forgetful:
            self.memory = Memory()
        self.epoch = self.memory.lead("scene again")
        self.state = load(self.memory.snapshot(), self.now, self.settings)
        self.standby = mirror(self.memory.snapshot(), self.settings)

    # what one can see

    def instance(self, name: str) -> Instance:
        return self.state.instances[name if "/" in name else f"default/{name}"]

    def states(self, *names: str) -> list[str]:
        return [self.instance(name).state for name in names]

    def where(self, *names: str) -> list[str]:
        return [self.instance(name).node for name in names]

    def counts(self, workload: str) -> dict[str, int]:
        """How many of a workload's instances are in which state; those that never ran are queued or at rest."""
        known = self.state.workloads[f"default/{workload}"]
        progress = self.state.progress.get(known.key)
        counts = {state: number for state, number in progress.counts.items() if number} if progress else {}
        fresh = known.count - (progress.begun if progress else 0)
        if fresh:
            counts[known.rest or "queued"] = counts.get(known.rest or "queued", 0) + fresh
        return counts

    def used(self, node: str, resource: str = "cpu") -> int:
        return int(self.state.fleet.used[resource][self.state.fleet.row(node)])

    def as_told(self, name: str) -> tuple[Run, Report]:
        """What an agent tells at hello of an instance that it runs."""
        instance = self.instance(name)
        return run_order(self.state, instance), Report(instance.token, "running", 5)

    def _reported(self, names: tuple[str, ...], state: str, fields: dict[str, Any]) -> Step:
        events = []
        for name in names:
            instance = self.instance(name)
            report = Report(instance.token, state, **fields)
            events.append(Reported(instance.node, self.state.nodes[instance.node].session, 1, (report,)))
        return self.step(*events)


def job(name: str, **fields: Any) -> dict[str, Any]:
    """A job's document: one core unless told."""
    return {"name": name, "command": "true"} | fields


def service(name: str, **fields: Any) -> dict[str, Any]:
    return job(name, kind="service", **fields)


def wanted(document: dict[str, Any]) -> Wanted:
    """A document as the edge hands it in."""
    return wanted_of(document)


def facts_of(cpu: float = 4, memory: Any = "16GiB", disk: Any = "100GiB", **fields: Any) -> Facts:
    """What a host offers, in a user's units."""
    more = fields.pop("more", {})
    resources = {"cpu": round(cpu * 1_000), "memory": byte_count(memory, ""), "disk": byte_count(disk, "")}
    return Facts(resources | more, **fields)


def said(done: Step) -> dict[str, list[str]]:
    """All that a step gives back, in words; what is empty is left out."""
    words = {
        "changes": [_change(change) for change in done.changes],
        "orders": [
            f"{each.node}: {'whole: ' if each.whole else ''}{', '.join(map(_order, each.orders)) or 'nothing'}"
            for each in done.assignments
        ],
        "replies": [_reply(value) for _, value in done.replies],
        "nodes": [f"{name} {status}: {cause}" for name, status, cause in done.nodes],
        "ignored": done.ignored,
        "swept": done.swept,
    }
    return {what: told for what, told in words.items() if told}


def short(key: str) -> str:
    """web.0 for default/web.0"""
    return key.removeprefix("default/")


def parted_name(name: str) -> tuple[str, int | None]:
    """web.1 is index 1 of default/web"""
    workload, dot, index = name.partition(".")
    return f"default/{workload}", int(index) if dot else None


def _order(order: Order) -> str:
    if isinstance(order, Run):
        return f"run {short(order.workload)}.{order.index} attempt {order.attempt}"
    if isinstance(order, Stop):
        return f"stop ({order.cause})"
    assert isinstance(order, Drop)
    return "drop"


def _change(change: Change) -> str:
    if change.value is None:
        return f"{change.kind} {short(change.key)} gone"
    record = msgspec.msgpack.decode(change.value)
    state = {"instance": "state", "node": "status", "workload": "rest"}.get(change.kind, "")
    default = {"instance": "queued", "node": "ready"}.get(change.kind, "")
    return f"{change.kind} {short(change.key)} {record.get(state, default)}".rstrip()


def _reply(value: object) -> str:
    if isinstance(value, RoostError):
        return f"{value.status} {value.code}: {value}"
    if isinstance(value, tuple):
        return " ".join(short(str(each)) for each in value)
    return short(value) if isinstance(value, str) else "welcome"
