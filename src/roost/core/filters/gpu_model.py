"""Work that names GPU models goes to nodes with one of these models only."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes with devices of a model that will do."""
    if not ask.gpu_models:
        return None
    return np.array([each.gpu_model in ask.gpu_models for each in fleet.facts], np.bool_)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which model was wanted."""
    return f"gpu_model: has no {' or '.join(ask.gpu_models)}"
