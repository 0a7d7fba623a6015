"""A scene: nodes, a state and a store without a network. Documents go in as plain data; a step comes out as words.

`said(step)` holds everything a step gives back, so comparing it says "this happened, and nothing else".
"""

from typing import Any

import msgspec

from roost.core.invariants import check, differences
from roost.core.orders import run_order
from roost.core.replica import follow, load, mirror, take_over
from roost.core.state.outcome import Step
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.step import step
from roost.model.errors import RoostError
from roost.model.events import (
    AttributedRequest,
    Cancel,
    Drain,
    Event,
    HeartbeatsReceived,
    NodeConnected,
    NodeDisconnected,
    Remove,
    ReportsReceived,
    Retry,
    SetPower,
    Submit,
    SubmitReply,
    Uncordon,
    WorkloadSpec,
)
from roost.model.protocol import Drop, Hello, Order, PowerOrder, Report, Run, Stop
from roost.model.records.instance import Instance
from roost.model.records.node import Facts, Node
from roost.model.records.opaque import By
from roost.model.records.transition import (
    InstanceTransitioned,
    NodeTransition,
    NodeTransitioned,
    Transitioned,
    lines_between,
)
from roost.model.spec.submission import spec_of_document
from roost.model.spec.units import byte_count, duration_ms
from roost.model.states import PowerAction
from roost.ports.store import Change, require
from roost.schema.reason_text import error_message
from roost.stores.memory import Memory

BEGINNING_MS = 1_000_000
MEGABYTE = 1_000_000


class Scene:
    """Nodes that are connected, and a server that has made every step durable."""

    def __init__(self, *names: str, cpu: float = 4, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.now = BEGINNING_MS
        self.memory = Memory()
        self.epoch = require(self.memory.lead("scene")).epoch
        self.state: State = load(self.memory.snapshot(), self.now, self.settings)
        self.standby = mirror(self.memory.snapshot(), self.settings)  # another server, which follows
        self.runs: dict[int, Run] = {}  # what agents were ordered to run, by token
        self.steps: list[Step] = []
        self.checked = True
        self.honest = True  # False: nodes take back what they offered, or run what they reported had ended
        for name in names:
            self.hello(name, cpu=cpu)

    # what happens

    def step(self, *events: Event) -> Step:
        """Let events happen now, and make the outcome durable."""
        done = step(self.state, events, self.now)
        if done.changes:
            revision = require(self.memory.apply(self.epoch, done.changes)).revision
            follow(self.standby, revision, done.changes)
        for orders in done.assignments:
            self.runs |= {order.token: order for order in orders.orders if isinstance(order, Run)}
        self.steps.append(done)
        committed = committed_transitions(done, self.state.revision)
        assert all(one in done.transitions for one in committed), "a standby would see other transitions"
        if self.checked:
            self.check()
        return done

    def check(self) -> None:
        """What must be true after every step, whatever the test is about."""
        complaints = [name for name in check(self.state) if self.honest or not name.startswith("room_is_enough")]
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
            if self.state.liveness[name].connected and name not in silent.split()
        )
        return self.step(HeartbeatsReceived(beats))

    def hello(
        self, name: str, *runs: str | tuple[Run, Report], identity: str = "", sent_ms: int = 0, **offer: Any
    ) -> Step:
        """An agent says hello, running these instances (by name; as their attempts stand) or these very runs."""
        answer = tuple(self.as_ordered(run) if isinstance(run, str) else run for run in runs)
        facts = offer.pop("facts", None) or facts_of(**offer)
        return self.step(NodeConnected(1, Hello(name, identity or f"machine-{name}", facts, sent_ms, answer)))

    def submit(self, *documents: dict[str, Any], same_ok: bool = False, must_exist: bool = False) -> Step:
        asked = tuple(wanted(document) for document in documents)
        return self.step(Submit(1, asked, same_ok, must_exist=must_exist))

    def cancel(self, name: str, by: str = "") -> Step:
        workload, index = parted_name(name)
        return (
            self.step(AttributedRequest(By(by), Cancel(1, workload, index)))
            if by
            else self.step(Cancel(1, workload, index))
        )

    def retry(self, name: str, *, failed: bool = False) -> Step:
        return self.step(Retry(1, *parted_name(name), failed))

    def power(self, name: str, action: str, by: str = "ann", grace_ms: int | None = None) -> Step:
        """A user commands virtual machines: one, or all of a workload."""
        workload, index = parted_name(name)
        return self.step(AttributedRequest(By(by), SetPower(1, workload, PowerAction(action), index, grace_ms)))

    def powered(self, name: str, power: str, serial: int | None = None, **fields: Any) -> Step:
        """The node of a machine reports its power; by default the last command is carried out."""
        known = self.instance(name).power
        done = known.serial if serial is None and known is not None else serial or 0
        return self.running(name, power=power, power_serial=done, **fields)

    def apply(self, *documents: dict[str, Any]) -> Step:
        """Submit what may be there already: another document makes a new version."""
        return self.submit(*documents, same_ok=True)

    def drain(self, node: str, deadline: str = "0") -> Step:
        return self.step(Drain(1, node, duration_ms(deadline, "deadline")))

    def uncordon(self, node: str) -> Step:
        return self.step(Uncordon(1, node))

    def remove(self, node: str) -> Step:
        return self.step(Remove(1, node))

    def part(self, node: str, *, leaving: bool = False) -> Step:
        return self.step(NodeDisconnected(node, self.state.nodes[node].session, leaving))

    def report(self, node: str, *reports: Report, session: int = 0, lacking: bool = False) -> Step:
        """A node sends these very reports."""
        session = session or self.state.nodes[node].session
        return self.step(ReportsReceived(node, session, 1, reports, lacking))

    def running(self, *names: str, **fields: Any) -> Step:
        """Agents report that these instances run."""
        return self._reported(names, "running", fields)

    def ended(self, *names: str, code: int | None = 0, cause: str = "exited", **fields: Any) -> Step:
        """Agents report that these instances have ended, exit code 0 by default."""
        return self._reported(names, "ended", fields | {"cause": cause, "code": code})

    def stopped(self, *names: str) -> Step:
        """Agents confirm that these instances were stopped."""
        return self.ended(*names, cause="stopped", code=None, signal=15)

    def restart(self, *, forgetful: bool = False) -> None:
        """A new server on the same store; forgetful: on an empty one, as after a restart with the memory store."""
        if forgetful:
            self.memory = Memory()
        self.epoch = require(self.memory.lead("scene again")).epoch
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
        existing = self.state.workloads[f"default/{workload}"]
        progress = self.state.progress.get(existing.key)
        counts = {state: number for state, number in progress.counts.items() if number} if progress else {}
        fresh = existing.count - (progress.placed_count if progress else 0)
        if fresh:
            counts[existing.unstarted_end_state or "queued"] = (
                counts.get(existing.unstarted_end_state or "queued", 0) + fresh
            )
        return counts

    def used(self, node: str, resource: str = "cpu") -> int:
        return int(self.state.fleet.used[resource][self.state.fleet.row(node)])

    def as_ordered(self, name: str) -> tuple[Run, Report]:
        """What an agent tells at hello of an instance that it runs."""
        instance = self.instance(name)
        return run_order(self.state, instance), Report(instance.token, "running", 5)

    def _reported(self, names: tuple[str, ...], state: str, fields: dict[str, Any]) -> Step:
        events = []
        for name in names:
            instance = self.instance(name)
            report = Report(instance.token, state, **fields)
            events.append(ReportsReceived(instance.node, self.state.nodes[instance.node].session, 1, (report,)))
        return self.step(*events)


def job(name: str, **fields: Any) -> dict[str, Any]:
    """A job's document: one core by default."""
    return {"name": name, "command": "true"} | fields


def service(name: str, **fields: Any) -> dict[str, Any]:
    return job(name, kind="service", **fields)


def vm(name: str, **fields: Any) -> dict[str, Any]:
    """The document of a virtual machine that any node with QEMU can run."""
    block = {"kernel": "blob:linux"}
    return {"name": name, "kind": "vm", "vm": block, "resources": {"cpu": 1, "memory": "64MiB"}} | fields


def wanted(document: dict[str, Any]) -> WorkloadSpec:
    """A document as the edge hands it in."""
    return spec_of_document(document)


def facts_of(cpu: float = 4, memory: Any = "16GiB", disk: Any = "100GiB", **fields: Any) -> Facts:
    """What a host offers, in a user's units."""
    more = fields.pop("more", {})
    resources = {"cpu": round(cpu * 1_000), "memory": byte_count(memory, ""), "disk": byte_count(disk, "")}
    return Facts(resources | more, **fields)


def outcome(done: Step) -> dict[str, list[str]]:
    """All that a step gives back, as text; what is empty is left out."""
    message = {
        "changes": [_change(change) for change in done.changes if change.kind not in ("usage", "need")],
        "orders": [
            f"{orders.node}: {'whole: ' if orders.whole else ''}{', '.join(map(_order, orders.orders)) or 'nothing'}"
            for orders in done.assignments
        ],
        "replies": [_reply(value) for _, value in done.replies],
        "nodes": [f"{key} {line.state}: {line.reason.code}" for key, line in node_changes(done)],
        "ignored": [f"{one.node}: {one.code} {one.token or ''}".strip() for one in done.ignored],
        "swept": done.swept,
    }
    return {what: answer for what, answer in message.items() if answer}


def committed_transitions(done: Step, revision: int) -> list[Transitioned]:
    """What happened in a step, as a reader of its commit finds it."""
    found: list[Transitioned] = []
    for change in done.changes:
        if change.kind == "instance" and change.value is not None:
            instance = msgspec.msgpack.decode(change.value, type=Instance)
            lines = lines_between(instance.story, revision - 1, revision)
            found += [InstanceTransitioned(change.key, line) for line in lines]
        elif change.kind == "node" and change.value is not None:
            node = msgspec.msgpack.decode(change.value, type=Node)
            found += [NodeTransitioned(change.key, line) for line in lines_between(node.story, revision - 1, revision)]
    return found


def node_changes(done: Step) -> list[tuple[str, NodeTransition]]:
    """Nodes that changed their status in a step."""
    return [(name, line) for name, line in done.node_transitions if line.state != line.before]


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
    if isinstance(order, PowerOrder):
        return f"power {order.action}"
    assert isinstance(order, Drop)
    return "drop"


def _change(change: Change) -> str:
    if change.value is None:
        return f"{change.kind} {short(change.key)} gone"
    record = msgspec.msgpack.decode(change.value)
    state = {"instance": "state", "node": "status", "workload": "unstarted_end_state"}.get(change.kind, "")
    default = {"instance": "queued", "node": "ready"}.get(change.kind, "")
    return f"{change.kind} {short(change.key)} {record.get(state, default)}".rstrip()


def _reply(value: object) -> str:
    if isinstance(value, RoostError):
        path = f"{value.path}: " if value.path else ""
        return f"{value.status} {value.code}: {path}{error_message(value)}"
    if isinstance(value, tuple):
        return " ".join(short(item.key if isinstance(item, SubmitReply) else str(item)) for item in value)
    return short(value) if isinstance(value, str) else "welcome"
