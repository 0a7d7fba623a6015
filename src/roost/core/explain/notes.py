"""Notes: what is worth a look in `why` and in a plan, although nothing is placed by it."""

from roost.core.state.needs import above_use
from roost.core.state.state import State
from roost.core.state.usage import recurring_name
from roost.model.reasons.reason import Reason
from roost.model.records.workload import Workload


def notes_on(state: State, workload: Workload) -> tuple[Reason, ...]:
    return above_use(state.needs.get(f"{workload.project}/{recurring_name(workload)}"), workload)
