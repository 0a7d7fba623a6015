"""One placement pass over a fleet written in a file: no server, no agents, the very same step."""

from collections import Counter
from typing import Any, NamedTuple

import msgspec
import ryaml

from roost.core.explain.blockers import Blocked, blockers_of
from roost.core.placement.scorers import SCORE_MAX
from roost.core.placement.strategies import DEFAULT, check_strategy
from roost.core.replica import load
from roost.core.state.allocation import Allocation
from roost.core.state.fleet import GPU
from roost.core.state.records import Settings
from roost.core.state.state import State
from roost.core.step import step
from roost.model import limits
from roost.model.errors import Invalid, RoostError
from roost.model.events import (
    Cordon,
    Drain,
    Event,
    HeartbeatsReceived,
    NodeConnected,
    NodeDisconnected,
    Submit,
    WorkloadSpec,
)
from roost.model.protocol import Hello, Usage
from roost.model.records.node import Facts
from roost.model.records.workload import Policy, Workload
from roost.model.spec.document import check_document, check_labels, encode_document, read_document
from roost.model.spec.names import check_name, check_node_name, check_text
from roost.model.spec.placement import taints_of
from roost.model.spec.reading import read
from roost.model.spec.resources import read_resource
from roost.model.states import WorkloadKind
from roost.ports.store import Snapshot
from roost.schema.reason_text import render_text

FILE_BYTES_MAX = 64 * 1024 * 1024  # 10,000 nodes and 100,000 workloads are some 20 MB
DRIVERS = ("container", "process", "qemu")  # of a node that does not say which it has
OPEN = ("online", "ready")
DRAINING = ("draining", "drained")
CORDONED = ("cordoned",)
OFFLINE = ("offline", "suspect", "stopped", "lost", "requested", "launching", "booting", "terminating", "gone")
STATUSES = OPEN + CORDONED + DRAINING + OFFLINE
NO_WORK = "true"  # a workload in such a file is only placed, so it need not say what it would run


class FleetNode(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    status: str = OPEN[0]
    labels: dict[str, str] = {}
    zone: str = ""
    rack: str = ""
    region: str = ""
    pool: str = limits.DEFAULT_POOL
    arch: str = ""
    drivers: tuple[str, ...] = DRIVERS
    gpu_model: str = ""
    taints: list[str] = []
    cpu: int | float | str | None = None
    memory: int | float | str | None = None
    disk: int | float | str | None = None
    gpu: int | float | str | None = None
    resources: dict[str, Any] = {}
    used: dict[str, Any] = {}
    measured: dict[str, Any] = {}  # cpu and memory: what it really uses; what `least_used` looks at


class FleetFile(msgspec.Struct, forbid_unknown_fields=True):
    strategy: str = ""
    seed: int = 0
    nodes: list[FleetNode] = []
    workloads: list[Any] = []


class CheckedNode(NamedTuple):
    name: str
    facts: Facts
    status: str
    used: dict[str, int]
    usage: Usage | None


class PlacedInstance(msgspec.Struct, omit_defaults=True):
    """An instance with its node; `scores` of the best candidates, the chosen one first."""

    instance: str
    node: str
    strategy: str
    scores: dict[str, float]
    devices: tuple[int, ...] = ()
    ports: dict[str, int] = {}


class PlacementReason(msgspec.Struct):
    reason: str
    nodes: int


class PendingInstance(msgspec.Struct):
    instance: str
    code: str
    online: int
    message: str
    blockers: list[PlacementReason]


class PlacementOutcome(msgspec.Struct):
    placements: list[PlacedInstance]
    pending: list[PendingInstance]


def place_file(text: bytes) -> PlacementOutcome:
    file = _read_file(text)
    check_strategy(file.strategy, "strategy")
    names: dict[str, int] = {}
    nodes = [_node(node, f"nodes[{index}]", names) for index, node in enumerate(file.nodes)]
    wanted = [_wanted(workload, f"workloads[{index}]") for index, workload in enumerate(file.workloads)]
    state = _fleet(Settings(strategy=file.strategy or DEFAULT, seed=file.seed), nodes)
    done = step(state, [Submit(1, tuple(wanted))] if wanted else [], now=3)
    for reply in done.replies:
        if isinstance(reply.value, RoostError):
            raise _located(reply.value, len(wanted))
    while done.wake_at_ms is not None and done.wake_at_ms <= state.now_ms:
        done = step(state, [], state.now_ms)
    return _outcome(state, wanted)


def _read_file(text: bytes) -> FleetFile:
    if len(text) > FILE_BYTES_MAX:
        raise Invalid("$", f"a file may have {FILE_BYTES_MAX} bytes; this one has {len(text)}")
    try:
        raw = ryaml.loads(text.decode())
    except (ryaml.InvalidYamlError, UnicodeDecodeError) as error:
        raise Invalid("$", f"this is neither YAML nor JSON: {error}") from None
    if not isinstance(raw, dict):
        raise Invalid("$", "the file is a mapping with nodes and workloads")
    return read(raw, FleetFile)


def _usage(raw: dict[str, Any], path: str) -> Usage:
    for name in raw:
        if name not in ("cpu", "memory", "disk"):
            raise Invalid(f"{path}.{name}", "cpu, memory and disk are measured")
    amounts = _amounts(raw, path)
    return Usage(amounts.get("cpu", 0), amounts.get("memory", 0), amounts.get("disk", 0))


def _node(node: FleetNode, path: str, names: dict[str, int]) -> CheckedNode:
    check_node_name(node.name, f"{path}.name")
    if node.name in names:
        raise Invalid(f"{path}.name", f"nodes[{names[node.name]}] is named {node.name} too")
    names[node.name] = len(names)
    status = node.status.lower()
    if status not in STATUSES:
        known = ", ".join(STATUSES)
        raise Invalid(f"{path}.status", f"a status is one of {known}, not {node.status!r:.60}")
    check_labels(node.labels, f"{path}.labels")
    check_name(node.pool, f"{path}.pool")
    taints = taints_of(node.taints, f"{path}.taints")
    for field in ("zone", "rack", "region", "arch", "gpu_model"):
        check_text(getattr(node, field), f"{path}.{field}")
    own = {name: getattr(node, name) for name in ("cpu", "memory", "disk", "gpu") if getattr(node, name) is not None}
    for name in node.resources:
        if name in own:
            raise Invalid(f"{path}.resources.{name}", f"{name} is given twice")
    totals = _amounts(own, path) | _amounts(node.resources, f"{path}.resources")
    used = _amounts(node.used, f"{path}.used")
    for name, amount in used.items():
        if amount > totals.get(name, 0):
            raise Invalid(f"{path}.used.{name}", "more is in use than the node has")
    facts = Facts(
        totals, node.labels, node.zone, node.rack, node.region, node.pool, node.arch, tuple(sorted(set(node.drivers))),
        node.gpu_model, taints,
    )  # fmt: skip
    usage = _usage(node.measured, f"{path}.measured") if node.measured else None
    return CheckedNode(node.name, facts, status, used, usage)


def _amounts(raw: dict[str, Any], path: str) -> dict[str, int]:
    if len(raw) > limits.RESOURCE_KINDS_MAX:
        raise Invalid(path, f"there may be {limits.RESOURCE_KINDS_MAX} kinds of resources, not {len(raw)}")
    amounts = {}
    for name, value in raw.items():
        here = f"{path}.{name}"
        if not isinstance(value, int | float | str):
            raise Invalid(here, f"a number is needed here, not {value!r:.60}")
        amounts[name] = read_resource(name, value, here)
    return amounts


def _wanted(raw: object, path: str) -> WorkloadSpec:
    document = read_document(raw, path)
    if document.steps is None and not document.command and not document.image and document.kind != WorkloadKind.VM:
        document.command = NO_WORK
    policy = check_document(document, path)
    check_strategy(policy.ask.strategy, f"{path}.placement.strategy")
    return WorkloadSpec(document.project, document.name, document.count, policy, encode_document(document, path))


def _fleet(settings: Settings, nodes: list[CheckedNode]) -> State:
    state = load(Snapshot(0, []), now=1, settings=settings)
    hellos = [Hello(node.name, node.name, node.facts, sent_ms=1) for node in nodes]
    step(state, [NodeConnected(number, hello) for number, hello in enumerate(hellos)], now=1)
    leaving: list[Event] = []
    for number, node in enumerate(nodes):
        if node.status in OFFLINE:
            leaving.append(NodeDisconnected(node.name, state.nodes[node.name].session))
        elif node.status in DRAINING:
            leaving.append(Drain(number, node.name))
        elif node.status in CORDONED:
            leaving.append(Cordon(number, node.name))
        orphans = state.liveness[node.name].orphans
        for held in _claims(node.used):
            orphans[-1 - len(orphans)] = held
            state.fleet.take(node.name, held)
    measured = tuple((node.name, node.usage) for node in nodes if node.usage is not None)
    step(state, [*leaving, HeartbeatsReceived((), measured)], now=2)
    return state


def _claims(used: dict[str, int]) -> list[Allocation]:
    """What is in use, as allocations: whole devices first, then a share of the next one."""
    taken = tuple(sorted((resource, amount) for resource, amount in used.items() if amount))
    if not taken:
        return []
    whole, share = divmod(used.get("gpu", 0), GPU)
    claims = [Allocation(taken, tuple(range(whole)), GPU)]
    return [*claims, Allocation((), (whole,), share)] if share else claims


def _outcome(state: State, wanted: list[WorkloadSpec]) -> PlacementOutcome:
    workloads = [state.workloads[spec.key] for spec in wanted]
    named = Counter(workload.name for workload in workloads)
    shown = {workload.key: workload.name if named[workload.name] == 1 else workload.key for workload in workloads}
    blocked: dict[tuple[str, Policy, str], Blocked] = {}
    outcome = PlacementOutcome([], [])
    for workload in workloads:
        for index in range(workload.count):
            name = f"{shown[workload.key]}.{index}"
            instance = state.instances.get(f"{workload.key}.{index}")
            if instance is not None and instance.decision is not None:
                scores = {node: score / SCORE_MAX for node, score in instance.decision.candidates}
                ports = dict(zip(workload.policy.ports, instance.ports, strict=True))
                found = (instance.node, instance.decision.strategy, scores, instance.devices, ports)
                outcome.placements.append(PlacedInstance(name, *found))
            else:
                outcome.pending.append(_pending(state, name, workload, blocked))
    return outcome


def _pending(
    state: State, name: str, workload: Workload, known: dict[tuple[str, Policy, str], Blocked]
) -> PendingInstance:
    key = (workload.project, workload.policy, workload.key if state.fleet.topology.anti_affinity else "")
    if key not in known:
        known[key] = blockers_of(state, workload)
    why = known[key]
    assert why.code != "placeable", f"{name} has room and was not placed"
    reasons = [PlacementReason(render_text(blocker.reason), blocker.nodes) for blocker in why.blockers]
    return PendingInstance(name, why.code, why.online, render_text(why.text()), reasons)


def _located(error: RoostError, wanted: int) -> RoostError:
    """The core names the position in the request; the answer names the position in the file."""
    error.path = f"workloads{error.path}" if wanted > 1 else f"workloads[0].{error.path}"
    return error
