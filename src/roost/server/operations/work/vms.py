"""Virtual machines: list them, and change their power."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from roost.core.state.state import State
from roost.model.errors import Conflict, Invalid
from roost.model.events import SetPower
from roost.model.records.workload import Workload
from roost.model.states import Power, WorkloadKind
from roost.schema.reason_text import Visible
from roost.schema.work import PowerBody, VmPage, VmView
from roost.server.auth.principal import Redactor
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit
from roost.server.operations.work.workloads import older_than
from roost.server.views.view_of import view_of
from roost.server.views.work import instances_of, unit_name
from roost.server.waiting import ScanLimit

INDEX_DIGITS_MAX = 9


class Scanned(NamedTuple):
    """Where a list has come, and the machine there; None: there is none that is asked for."""

    cursor: str
    vm: VmView | None = None


async def list_vms(
    call: Call, project: str = "", power: Power | None = None, limit: Limit = 100, after: After = ""
) -> VmPage:
    """List the virtual machines of live workloads, newest first. `power`: only running ones in this power state."""
    state, redactor = await call.state(), call.redactor
    items: list[VmView] = []
    scan = ScanLimit()
    for cursor, vm in _scan(state, after, redactor, project):
        if vm is not None and (power is None or (vm.power is not None and vm.power.state == power)):
            items.append(vm)
        if scan.is_over() or len(items) == limit:
            return VmPage(state.revision, items, cursor)
    return VmPage(state.revision, items)


def _scan(state: State, after: str, redactor: Redactor, project: str) -> Iterator[Scanned]:
    """The machines after one. A cursor is that of a list of workloads, with the index of the last machine."""
    after, _, index = after.partition("#")
    if index:
        if not (index.isascii() and index.isdigit() and len(index) <= INDEX_DIGITS_MAX):
            raise Invalid("after", "this is not the `next` of a page")
        begun = state.workloads.get(after.partition(":")[2])
        if begun is not None and redactor.sees(begun.project) and after == f"{begun.serial}:{begun.key}":
            yield from _machines(state, begun, redactor, int(index) + 1)
    for workload in older_than(state, after, redactor):
        is_seen = redactor.sees(workload.project)
        if is_seen and project in ("", workload.project):
            yield from _machines(state, workload, redactor)
        yield Scanned(f"{workload.serial}:{workload.key if is_seen else ''}")


def _machines(state: State, workload: Workload, redactor: Redactor, first: int = 0) -> Iterator[Scanned]:
    if workload.policy.kind == WorkloadKind.VM and not workload.finished_ms:
        for vm in vm_views(state, workload, first, redactor.visible):
            yield Scanned(f"{workload.serial}:{workload.key}#{vm.index}", vm)


async def get_vms(call: Call, project: str, name: str) -> VmPage:
    """Show the virtual machines of a workload, by index: the first 1,000."""
    workload = await call.workload(project, name)
    return _page(await call.state(), workload, call.redactor)


async def set_power(call: Call, project: str, name: str, body: PowerBody) -> VmPage:
    """Start, stop, pause, resume, reboot or reset virtual machines: all of them, or none.

    A machine that is so already does not change; reboot and reset happen each time. 409 `wrong_power`, `not_running`.
    The answer does not wait for the node: `pending` says that it has not carried out the command yet.
    """
    key = f"{project}/{name}"
    await call.ask(lambda number: SetPower(number, key, body.action, body.index, body.grace_ms))
    return await get_vms(call, project, name)


def _page(state: State, workload: Workload, redactor: Redactor) -> VmPage:
    if workload.policy.kind != WorkloadKind.VM:
        raise Conflict(f"{workload.key} is a {workload.policy.kind}, not a vm", code="not_a_vm")
    found = islice(vm_views(state, workload, visible=redactor.visible), PAGE_MAX)
    return VmPage(state.revision, list(found))


def vm_views(state: State, workload: Workload, first: int = 0, visible: Visible | None = None) -> Iterator[VmView]:
    """The machines of a workload by index, from one on, also those that never ran."""
    needs = {unit_name(name): amount for name, amount in workload.policy.ask.resources}
    for index, view in instances_of(state, workload, first, workload.count, visible):
        instance = state.instances.get(f"{workload.key}.{index}")
        ports = dict(zip(workload.policy.ports, instance.ports, strict=False)) if instance is not None else {}
        yield view_of(VmView, view, needs=needs, ports=ports)
