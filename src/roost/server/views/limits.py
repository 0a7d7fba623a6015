"""Limits that a document asks for and that nodes do not enforce: there, they only reserve."""

from typing import Any

import msgspec

from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.states import NodeStatus

LIMITS = ("cpu", "memory")

Known = dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]  # limits and pools -> what no node enforces


class _Asked(msgspec.Struct):
    """The resources of a stored document: decoding nothing else is quick."""

    resources: dict[str, Any] = {}


_DECODE = msgspec.msgpack.Decoder(_Asked).decode


def unenforced(state: State, workload: Workload, known: Known) -> list[str]:
    """What is asked for and enforced by no node that may take it; `known`: the answers of one call."""
    asked, pools = _asked(workload), workload.policy.ask.pools
    key = (asked, pools)
    if asked and key not in known:
        known[key] = _enforced_nowhere(state, asked, pools)
    return known[key] if asked else []


def unenforced_on(state: State, workload: Workload, instance: Instance) -> list[str]:
    """What is asked for and not enforced where the instance is."""
    node = state.nodes.get(instance.node)
    return [name for name in _asked(workload) if name not in node.facts.enforces] if node is not None else []


def _asked(workload: Workload) -> tuple[str, ...]:
    resources = _DECODE(workload.document).resources
    return tuple(name for name in LIMITS if name in resources)


def _enforced_nowhere(state: State, asked: tuple[str, ...], pools: tuple[str, ...]) -> list[str]:
    missing, is_any = set(asked), False
    for node in state.nodes.values():
        if node.status != NodeStatus.LOST and (not pools or node.facts.pool in pools):
            is_any = True
            missing.difference_update(node.facts.enforces)
            if not missing:
                break
    return [name for name in asked if name in missing] if is_any else []
