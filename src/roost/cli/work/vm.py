"""roost vm: list virtual machines, and change their power."""

import time
from collections.abc import Sequence

import click

from roost.cli.common.exit_codes import DONE, FAILED
from roost.cli.common.format import ago, amount, took
from roost.cli.common.options import DURATION, only_project_option, project_option
from roost.cli.common.output import Output, echo_err, listed
from roost.cli.common.rollout_progress import seconds, timeout_option
from roost.cli.common.session import client_output, listing
from roost.cli.common.targets import TARGET, Target, in_project
from roost.client import Client
from roost.model.states import Power, PowerAction
from roost.schema.work import PowerView, VmView

HEADER = ("VM", "STATE", "POWER", "NODE", "CPU", "MEMORY", "SINCE")


@listing("vm", "virtual machines")
@only_project_option
@click.option(
    "--power",
    type=click.Choice([power.value for power in Power]),
    default=None,
    help="Only running ones in this power state.",
)
@client_output
def vm(client: Client, project: str, power: str | None) -> Output:
    """List virtual machines, and change their power.

    Examples:
      roost vm                       every virtual machine
      roost vm --power stopped
      roost vm stop db               shut it down; after its grace it is switched off
      roost vm start db --wait

    Next: `roost show NAME` for its story, `roost logs -f NAME` for its console, `roost cancel NAME` to delete it.
    """
    found = client.vms.list(project=project, power=power or "")
    empty = "there are no virtual machines; `roost apply -f FILE` starts one of `kind: vm`"
    return listed(found, HEADER, _row, "" if power else empty)


def _row(vm: VmView) -> tuple[str, ...]:
    since = vm.power.since_ms if vm.power is not None else vm.since_ms
    cpu, memory = (amount(name, vm.needs[name]) if name in vm.needs else "-" for name in ("cpu_milli", "memory"))
    return _name(vm), vm.state, _standing(vm.power), vm.node or "-", cpu, memory, ago(since)


def _standing(power: PowerView | None) -> str:
    """`running`, `stopped`, `running, stop pending`, `stopped, start failed`; `-` if it does not run."""
    if power is None:
        return "-"
    if power.pending:
        return f"{power.state}, {power.action} pending"
    return f"{power.state}, {power.action} failed" if power.problem else power.state


def format_power(power: PowerView) -> str:
    """`stopped for 3h, by ann`, with a command that is pending or has failed."""
    text = f"{power.state} for {took(power.since_ms, None)}" if power.since_ms else power.state
    by = f" by {power.by}" if power.by else ""
    if power.pending:
        return f"{text}; {power.action} requested {ago(power.asked_ms)}{by}, pending"
    if power.problem:
        return f"{text}; {power.action} requested {ago(power.asked_ms)}{by} failed: {power.problem}"
    return text + (f",{by}" if by else "")


def _name(vm: VmView) -> str:
    return str(Target(vm.project, vm.name, vm.index))


targets_argument = click.argument("targets", type=TARGET, nargs=-1, required=True, metavar="NAME[.INDEX]...")
wait_option = click.option("--wait", is_flag=True, help="Wait until its node has done it, or has failed to.")
grace_option = click.option(
    "--grace", type=DURATION, default=None, metavar="DURATION",
    help="How long its guest may take to shut down; 0: switched off at once. [default: `grace` of its document]",
)  # fmt: skip


@vm.command()
@targets_argument
@wait_option
@timeout_option
@project_option
@client_output
def start(client: Client, targets: Sequence[Target], wait: bool, timeout: str | None, project: str) -> Output:
    """Switch stopped virtual machines on, on the node where their disks are.

    Examples:
      roost vm start db
      roost vm start db --wait && roost logs -f db

    Exit code with --wait: 1 if it failed, 124 time limit. A running one does not change.
    Next: `roost logs -f NAME` follows its console.
    """
    return _command(client, PowerAction.START, targets, project, wait, timeout)


@vm.command()
@targets_argument
@grace_option
@wait_option
@timeout_option
@project_option
@client_output
def stop(
    client: Client, targets: Sequence[Target], grace: int | None, wait: bool, timeout: str | None, project: str
) -> Output:
    """Shut virtual machines down, and switch them off when their grace is over.

    A stopped one keeps its node, its disks and its allocation; `roost cancel` gives all of it back.

    Examples:
      roost vm stop db
      roost vm stop db --wait --timeout 5m
      roost vm stop db --grace 0          at once, as if its plug was pulled

    Next: `roost vm start NAME`; `roost why NAME` says who stopped it.
    """
    return _command(client, PowerAction.STOP, targets, project, wait, timeout, grace)


@vm.command()
@targets_argument
@wait_option
@timeout_option
@project_option
@client_output
def pause(client: Client, targets: Sequence[Target], wait: bool, timeout: str | None, project: str) -> Output:
    """Halt the processors of virtual machines. Their memory stays as it is, and their allocation.

    Examples:
      roost vm pause db

    Next: `roost vm resume NAME`. A paused machine that moves to another node begins stopped: its memory is lost.
    """
    return _command(client, PowerAction.PAUSE, targets, project, wait, timeout)


@vm.command()
@targets_argument
@wait_option
@timeout_option
@project_option
@client_output
def resume(client: Client, targets: Sequence[Target], wait: bool, timeout: str | None, project: str) -> Output:
    """Let paused virtual machines go on.

    Examples:
      roost vm resume db

    Next: `roost vm` shows their power states.
    """
    return _command(client, PowerAction.RESUME, targets, project, wait, timeout)


@vm.command()
@targets_argument
@grace_option
@wait_option
@timeout_option
@project_option
@client_output
def reboot(
    client: Client, targets: Sequence[Target], grace: int | None, wait: bool, timeout: str | None, project: str
) -> Output:
    """Shut running virtual machines down and start them again; when their grace is over, at once.

    Examples:
      roost vm reboot db --wait

    Next: `roost logs -f NAME` follows its console. `roost vm reset NAME` does not ask its guest.
    """
    return _command(client, PowerAction.REBOOT, targets, project, wait, timeout, grace)


@vm.command()
@targets_argument
@wait_option
@timeout_option
@project_option
@client_output
def reset(client: Client, targets: Sequence[Target], wait: bool, timeout: str | None, project: str) -> Output:
    """Start running virtual machines anew at once, as with the reset button. Their guests lose what is not on disk.

    Examples:
      roost vm reset db

    Next: `roost logs -f NAME` follows its console.
    """
    return _command(client, PowerAction.RESET, targets, project, wait, timeout)


def _command(
    client: Client, action: PowerAction, targets: Sequence[Target], project: str, wait: bool, timeout: str | None,
    grace_ms: int | None = None,
) -> Output:  # fmt: skip
    timeout_s = seconds(timeout, wait)
    found: list[list[VmView]] = []
    for target in (in_project(target, project) for target in targets):
        vms = client.vms.power(target.project, target.name, action, target.index, grace_ms=grace_ms)
        found.append([vm for vm in vms if target.index in (None, vm.index)])
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    for place, vms in enumerate(found) if wait else ():
        found[place] = client.vms.wait(vms, None if deadline is None else max(0.0, deadline - time.monotonic()))
    done = [vm for vms in found for vm in vms]
    failed = [vm for vm in done if wait and (vm.power is None or vm.power.problem)]
    return Output(done, lambda: _tell(done), FAILED if failed else DONE)


def _tell(done: Sequence[VmView]) -> None:
    for vm in done:
        power = vm.power
        if power is None:
            echo_err(f"{_name(vm)} is {vm.state}" + (f": {vm.message}" if vm.message else ""))
        elif power.pending:
            echo_err(f"{_name(vm)} is {power.state}; {power.action} requested, `roost vm` shows when it is done")
        elif power.problem:
            echo_err(f"{_name(vm)} is {power.state}; {power.action} failed: {power.problem}")
        else:
            echo_err(f"{_name(vm)} is {power.state}")
