"""Work that names GPU models goes to nodes with one of these models only."""

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes with devices of a model that will do."""
    if not ask.gpu_models:
        return None
    return fleet.said_of(("gpu_model", ask.gpu_models), lambda name, facts: facts.gpu_model in ask.gpu_models)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which model was wanted."""
    return f"gpu_model: has no {' or '.join(ask.gpu_models)}"
