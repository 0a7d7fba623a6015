"""Ports: fixed numbers must be free on the node; the others are chosen when the instance is placed."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask


def ports_mask(fleet: Fleet, ask: Ask) -> Mask:
    result = np.ones(len(fleet), np.bool_)
    if ask.ports:
        for name in fleet.ports:
            row = fleet.row(name)
            if row >= 0:
                result[row] = ports_allows(fleet, ask, row)
    return result


def ports_allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    if not ask.ports:
        return True
    allocated = fleet.ports.get(fleet.names[row])
    if not allocated:
        return True
    facts = fleet.facts[row]
    room = facts.port_last - facts.port_first + 1 - len(allocated)
    return room >= len(ask.ports) and not any(port in allocated for port in ask.ports)


def explain_ports(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    wanted = dict.fromkeys(port for port in ask.ports if port)
    taken = {
        port: None
        for row in np.flatnonzero(failing)
        for port in wanted
        if port in fleet.ports.get(fleet.names[int(row)], {})
    }
    return f"ports: {', '.join(map(str, taken)) or 'all'} taken"


def ports_of(fleet: Fleet, ask: Ask, row: int) -> tuple[int, ...]:
    """The ports to take on a node: fixed numbers, and the first free ones for a 0."""
    if not ask.ports:
        return ()
    allocated = fleet.ports.get(fleet.names[row], {})
    named, facts = set(ask.ports), fleet.facts[row]
    free = (
        port for port in range(facts.port_first, facts.port_last + 1) if port not in allocated and port not in named
    )
    return tuple([port or next(free) for port in ask.ports])
