"""What is scarce: models of GPUs that much work must have, and the resource that work uses up first."""

import numpy as np

from roost.core.fleet import Fleet, Ints
from roost.core.rooms import typical_for
from roost.model.workload import Ask

PRICE = 1_000  # thousandths: the price of a model that typical work bound to it would fill
PRICE_MAX = 10_000  # ten times what there is: dearer makes no difference, and products stay small
RESOURCES = ("cpu", "memory", "disk")


def price(fleet: Fleet, row: int) -> int:
    """The price of the GPUs of one node."""
    return _prices(fleet)[0].get(fleet.facts[row].gpu_model, 0)


def prices(fleet: Fleet) -> Ints:
    """The price of the GPUs of each node."""
    return _prices(fleet)[1]


def scarcest(fleet: Fleet, ask: Ask) -> str:
    """Of cpu, memory and disk the one of which typical work takes the largest part of all there is; "" for none."""
    key = "scarcest" if fleet.typical.shapes else ("scarcest", ask)
    found: str | None = fleet.derived.get(key)
    if found is None:
        asked = dict.fromkeys(RESOURCES, 0)
        for shape, weight in typical_for(fleet, ask).asked:
            for resource, amount in zip(RESOURCES, (shape.cpu, shape.memory, shape.disk), strict=True):
                asked[resource] += weight * amount
        there = {each: int(fleet.total[each].sum()) for each in RESOURCES if each in fleet.total}
        known = [each for each in RESOURCES if there.get(each)]
        found = max(known, key=lambda each: asked[each] * PRICE * PRICE // there[each], default="")
        fleet.derived[key] = found
    return found


def _prices(fleet: Fleet) -> tuple[dict[str, int], Ints]:
    """By model and by row: the part of a model's GPUs that typical work takes which must have it.

    Typical work is taken to ask for as many GPUs as there are; what may run on several models is spread over them.
    """
    found: tuple[dict[str, int], Ints] | None = fleet.derived.get("prices")
    if found is None:
        there: dict[str, int] = {}
        for facts, gpus in zip(fleet.facts, fleet.device_total.sum(axis=1).tolist(), strict=True):
            there[facts.gpu_model] = there.get(facts.gpu_model, 0) + gpus
        by_model = dict.fromkeys(there, 0)
        asked = sum(weight * shape.gpu for shape, weight in fleet.typical.asked)
        for shape, weight in fleet.typical.asked:
            suiting = [each for each in there if each in shape.gpu_models]
            room = sum(there[each] for each in suiting)
            for model in suiting if room else ():
                by_model[model] += weight * shape.gpu * PRICE * sum(there.values()) // (asked * room)
        by_model = {model: min(cost, PRICE_MAX) for model, cost in by_model.items()}
        rows = np.array([by_model[each.gpu_model] for each in fleet.facts], np.int64)
        found = fleet.derived["prices"] = (by_model, rows)
    return found
