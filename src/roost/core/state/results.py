"""Results of attempts, kept with their instances. They are in memory, so they are counted and bounded."""

from roost.core.state.records import StoredRecords
from roost.model.keys import split_workload_key
from roost.model.records.instance import Instance
from roost.model.records.result import Result, ResultProblem


def set_result(state: StoredRecords, instance: Instance, result: Result | None) -> None:
    """The result of the present attempt; None: it has none yet. One for which there is no room is not kept."""
    if result is None and instance.result is None:
        return
    problem = room_problem(state, instance, result)
    count_result(state, instance, -1)
    instance.result = result if problem is None else problem
    count_result(state, instance, 1)


def count_result(state: StoredRecords, instance: Instance, sign: int) -> None:
    """An instance with a result came into the state, or left it."""
    if instance.result is None or not instance.result.data:
        return
    size, project = sign * len(instance.result.data), split_workload_key(instance.workload)[0]
    state.result_bytes_all += size
    state.result_bytes[project] = state.result_bytes.get(project, 0) + size
    if not state.result_bytes[project]:
        del state.result_bytes[project]


def room_problem(state: StoredRecords, instance: Instance, result: Result | None) -> Result | None:
    """Why there is no room for a result in place of the present one; None: there is."""
    if result is None or not result.data:
        return None
    more = len(result.data) - (len(instance.result.data) if instance.result is not None else 0)
    used = state.result_bytes.get(split_workload_key(instance.workload)[0], 0)
    if used + more > state.settings.project_results_max:
        return Result(problem=ResultProblem.PROJECT_FULL, size=len(result.data))
    if state.result_bytes_all + more > state.settings.results_max:
        return Result(problem=ResultProblem.SERVER_FULL, size=len(result.data))
    return None
