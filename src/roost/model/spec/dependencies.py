"""The blocks of a document about order and repetition: `after`, `each` and `schedule`, checked."""

from typing import Literal

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.keys import workload_key
from roost.model.records.workload import After, Schedule
from roost.model.spec.cron import check_cron, check_zone
from roost.model.spec.names import check_name
from roost.model.spec.placement import between
from roost.model.states import Milestone, Overlap, WorkloadKind

VALUE = "ROOST_VALUE"  # the variable that holds an element's value, where that is a plain text
NO_FILE = "this is a list of texts or mappings; files are read by the `roost` command, which sends what is in them"
Values = tuple[tuple[tuple[str, str], ...], ...]


class AfterBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    workload: str
    when: Literal["succeeded", "finished", "started"] | None = None
    each: bool = False


class ScheduleBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    cron: str
    zone: str = "UTC"
    overlap: Overlap = Overlap.SKIP
    catch_up: int = 1
    history_limit: int = 10


def after_of(blocks: list[str | AfterBlock], project: str, name: str, count: int, path: str) -> tuple[After, ...]:
    """The dependencies of a workload. The core checks `when` for services, because it knows the dependency."""
    between(len(blocks), 0, limits.AFTER_MAX, path, "workloads")
    found: dict[str, After] = {}
    for index, other_block in enumerate(blocks):
        block = AfterBlock(other_block) if isinstance(other_block, str) else other_block
        here = f"{path}[{index}]" if isinstance(other_block, str) else f"{path}[{index}].workload"
        check_name(block.workload, here)
        key = workload_key(project, block.workload)
        if block.workload == name:
            raise Invalid(here, "a workload cannot wait for itself")
        if key in found:
            raise Invalid(here, f"{block.workload} is named twice")
        if block.each:
            between(count, 1, limits.EACH_MAX, f"{path.removesuffix('after')}count", "elements that wait for one each")
        found[key] = After(key, Milestone(block.when) if block.when else None, block.each)
    return tuple(found.values())


def values_of(item: list[str | dict[str, str]] | None, path: str) -> Values:
    if item is None:
        return ()
    between(len(item), 1, limits.EACH_MAX, path, "elements")
    found = tuple(
        ((VALUE, element),) if isinstance(element, str) else tuple(sorted(element.items())) for element in item
    )
    size = sum(len(name.encode()) + len(value.encode()) for element in found for name, value in element)
    if size > limits.EACH_BYTES_MAX:
        raise Invalid(path, f"all values together may have {limits.EACH_BYTES_MAX:,} bytes; these have {size:,}")
    for number, element in enumerate(found):
        between(len(element), 1, limits.EACH_VARIABLES_MAX, f"{path}[{number}]", "variables")
        for name, value in element:
            if not name or "=" in name or "\0" in name + value:
                raise Invalid(f"{path}[{number}]", f"{name!r:.60} is not a variable, or its value holds a NUL")
            if len(name.encode()) + len(value.encode()) >= limits.COMMAND_BYTES_MAX:
                message = f"a variable may have {limits.COMMAND_BYTES_MAX:,} bytes; {name!r:.60} has more"
                raise Invalid(f"{path}[{number}]", message)
    return found


def schedule_of(block: str | ScheduleBlock | None, kind: WorkloadKind, name: str, path: str) -> Schedule | None:
    if block is None:
        return None
    if isinstance(block, str):
        block, here = ScheduleBlock(block), path
    else:
        here = f"{path}.cron"
    if kind != WorkloadKind.JOB:
        raise Invalid(path, f"only a job runs by a schedule; a {kind} runs all the time")
    if len(name) > limits.SCHEDULE_NAME_MAX:
        message = f"the name of a scheduled job may have {limits.SCHEDULE_NAME_MAX} characters: its runs add their time"
        raise Invalid(f"{path.removesuffix('schedule')}name", message)
    check_cron(block.cron, here)
    check_zone(block.zone, f"{path}.zone")
    between(block.catch_up, 0, limits.CATCH_UP_MAX, f"{path}.catch_up")
    between(block.history_limit, 0, limits.HISTORY_LIMIT_MAX, f"{path}.history_limit")
    return Schedule(block.cron, block.zone, block.overlap, block.catch_up, block.history_limit)
