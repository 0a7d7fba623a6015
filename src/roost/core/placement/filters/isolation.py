"""Processes: how a node keeps them apart, which users they may have there, and which limits it enforces."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask

PROCESS = "process"
NOTHING_SET: tuple[str, tuple[str, ...]] = ("", ())  # for the processes of a project


def isolation_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    return _offering(fleet, ask.isolation)


def explain_isolation(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    return f"isolation: {_offered(fleet, failing)}, {ask.isolation} is needed"


def users_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    return fleet.field_mask(("users",), "users", bool) if ask.run_as else None


def explain_users(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    return f"run_as: cannot give runs the user {ask.run_as}, its agent is not root or isolates nothing"


def limits_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    if not ask.limits:
        return None
    wanted = set(ask.limits)
    return fleet.field_mask(("limits", ask.limits), "enforces", lambda enforced: wanted.issubset(enforced))


def explain_limits(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    lacking: dict[str, None] = {}
    for row in np.flatnonzero(failing).tolist():
        lacking.update(dict.fromkeys(name for name in ask.limits if name not in fleet.facts[row].enforces))
    return f"limits: does not enforce {' and '.join(lacking)}"


def project_mask(fleet: Fleet, project: str, ask: Ask) -> Mask | None:
    """What an administrator has set for the project of a process; None: all nodes."""
    if ask.driver != PROCESS:
        return None
    if not may_run_as(fleet, project, ask):
        return np.zeros(len(fleet), np.bool_)
    return _offering(fleet, fleet.of_processes.get(project, NOTHING_SET)[0])


def explain_project(fleet: Fleet, project: str, ask: Ask, failing: Mask) -> str:
    if not may_run_as(fleet, project, ask):
        return f"run_as: its project may not run as {ask.run_as}"
    return f"isolation: {_offered(fleet, failing)}, its project needs {fleet.of_processes[project][0]}"


def may_run_as(fleet: Fleet, project: str, ask: Ask) -> bool:
    return not ask.run_as or ask.run_as in fleet.of_processes.get(project, NOTHING_SET)[1]


def _offering(fleet: Fleet, level: str) -> Mask | None:
    if not level:
        return None
    return fleet.field_mask(("isolation", level), "isolation", lambda offered: offered.offers(level))


def _offered(fleet: Fleet, failing: Mask) -> str:
    levels = {fleet.facts[row].isolation for row in np.flatnonzero(failing).tolist()}
    return f"offers {' or '.join(sorted(levels))}"
