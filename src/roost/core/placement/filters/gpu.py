"""GPUs: whole devices or a share of one, never a share that spans devices; and their models."""

import numpy as np

from roost.core.state.fleet import GPU, Fleet, Mask
from roost.model.records.workload import Ask
from roost.model.spec.units import show_cpu


def gpu_mask(fleet: Fleet, ask: Ask) -> Mask:
    if not ask.gpu_count:
        return np.ones(len(fleet), np.bool_)
    if ask.gpu_milli < GPU:
        return np.asarray((fleet.devices >= ask.gpu_milli).any(axis=1))
    return np.asarray(np.count_nonzero(fleet.devices >= GPU, axis=1) >= ask.gpu_count)


def gpu_allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    if not ask.gpu_count:
        return True
    fitting = 0
    for free in fleet.devices[row].tolist():
        if free >= ask.gpu_milli:
            fitting += 1
            if fitting >= ask.gpu_count:
                return True
    return False


def explain_gpu(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    devices = fleet.devices[failing]
    if ask.gpu_milli < GPU:
        most = max(0, int(devices.max(initial=0)))
        return f"gpu: needs {show_cpu(ask.gpu_milli)} of one device, at most {show_cpu(most)} of one is free"
    most = int(np.count_nonzero(devices >= GPU, axis=1).max(initial=0))
    return f"gpu: needs {ask.gpu_count} whole, at most {most} wholly free"


def devices_of(fleet: Fleet, ask: Ask, row: int) -> tuple[int, ...]:
    """The devices to take on a node: the first free ones, or for a share the fullest that still fits it."""
    if not ask.gpu_count:
        return ()
    free = fleet.devices[row].tolist()
    if ask.gpu_milli < GPU:
        return (min((left, device) for device, left in enumerate(free) if left >= ask.gpu_milli)[1],)
    return tuple([device for device, left in enumerate(free) if left >= GPU][: ask.gpu_count])


def gpu_model_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    if not ask.gpu_models:
        return None
    return fleet.field_mask(("gpu_model", ask.gpu_models), "gpu_model", lambda model: model in ask.gpu_models)


def explain_gpu_model(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    return f"gpu_model: has no {' or '.join(ask.gpu_models)}"
