"""A fleet of nodes with their allocations, without a state or a server. Documents go in, nodes come out."""

from typing import Any, NamedTuple

import numpy as np

from roost.core.placement.filters import AFFINITY, DYNAMIC, STATIC
from roost.core.placement.filters.ports import ports_of
from roost.core.placement.score_cache import ScoreCaches, fits_when_empty
from roost.core.placement.select import choose, without_affinity
from roost.core.placement.strategies import STRATEGIES
from roost.core.state.allocation import Allocation, make_allocation, selectors_of
from roost.core.state.fleet import Fleet
from roost.model.records.node import Facts
from roost.model.records.workload import Policy
from roost.model.spec.document import check_document, read_document
from tests.core.scene import facts_of


class Standing(NamedTuple):
    """What was placed, and what it took."""

    node: str
    claim: Allocation


class FleetBuilder:
    """Nodes, each open for work, and instances that were placed on them one by one."""

    def __init__(self, *names: str, strategy: str = "least_loaded", **offer: Any) -> None:
        self.fleet = Fleet()
        self.shortlists = ScoreCaches()
        self.strategy = strategy
        self.standing: dict[str, list[Standing]] = {}
        self.last = -1
        for name in names:
            self.node(name, **offer)

    def node(self, name: str, *, is_open: bool = True, facts: Facts | None = None, **offer: Any) -> None:
        self.fleet.join(name, facts or facts_of(**offer))
        self.fleet.set_open(name, is_open=is_open, is_online=True)

    def place(self, name: str, *, drawn: int = 0, **fields: Any) -> str:
        """Place one instance of a document; the node it went to, nothing if it has to wait."""
        policy, subjects = asked(name, **fields)
        strategy = STRATEGIES[policy.ask.strategy or self.strategy]
        choice = choose(self.fleet, self.shortlists, policy.ask, strategy, subjects, self.last, drawn)
        if choice.row < 0:
            return ""
        self.last = choice.row if strategy.cursor else -1
        node = self.fleet.names[choice.row]
        devices = strategy.devices(self.fleet, policy.ask, choice.row)
        ports = ports_of(self.fleet, policy.ask, choice.row)
        taken = make_allocation("default", f"default/{name}", policy, devices, ports)
        self.fleet.take(node, taken)
        self.standing.setdefault(name, []).append(Standing(node, taken))
        return node

    def places(self, name: str, times: int, **fields: Any) -> list[str]:
        return [self.place(name, **fields) for _ in range(times)]

    def end(self, name: str) -> None:
        """The instance of this name that was placed first ends."""
        node, taken = self.standing[name].pop(0)
        self.fleet.take(node, taken, -1)

    def taken(self, name: str) -> Allocation:
        """What the last instance of this name took."""
        return self.standing[name][-1].claim

    def scores(self, name: str, **fields: Any) -> dict[str, int]:
        """What each node is worth to a document, in thousandths; nodes that will not do are left out."""
        policy, subjects = asked(name, **fields)
        strategy = STRATEGIES[policy.ask.strategy or self.strategy]
        choice = choose(self.fleet, self.shortlists, policy.ask, strategy, subjects)
        scores = zip(self.fleet.names, choice.scores.tolist(), strict=True)
        return {node: score // 1_000 for node, score in scores if score >= 0}

    def blockers(self, name: str, **fields: Any) -> dict[str, int]:
        """Why nodes say no, as text, and how many of them."""
        policy, subjects = asked(name, **fields)
        ask, fleet = policy.ask, self.fleet
        found = {}
        for item in (*STATIC, *DYNAMIC):
            mask = item.mask(fleet, ask)
            if mask is not None and not mask.all():
                found[item.explain(fleet, ask, ~mask)] = int(np.count_nonzero(~mask))
        for social in AFFINITY:
            mask = social.mask(fleet, ask, subjects, fits_when_empty(fleet, without_affinity(ask)))
            if mask is not None and not mask.all():
                found[social.explain(fleet, ask, subjects, ~mask)] = int(np.count_nonzero(~mask))
        return found


def asked(name: str, **fields: Any) -> tuple[Policy, tuple[str, ...]]:
    """What a document asks for, and the names by which others speak of it. Placement rules may stand beside fields."""
    rules = ("require", "prefer", "tolerate", "near", "apart", "avoid", "spread", "per_node", "pool", "region",
             "strategy", "gpu_model")  # fmt: skip
    placement = {rule: fields.pop(rule) for rule in rules if rule in fields}
    work = {} if "vm" in fields else {"command": "true"}
    document = read_document({"name": name, "placement": placement} | work | fields)
    policy = check_document(document)
    return policy, selectors_of(document.project, f"{document.project}/{document.name}", policy.labels)
