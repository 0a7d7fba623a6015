"""Commands for virtual machines, and what their nodes report of them."""

from roost.agent.machine import AgentMachine
from roost.model.protocol import PowerOrder
from roost.model.states import Power, PowerAction
from roost.ports.driver import Ended, KnownRun, KnownRuns, PowerChanged, RunRequest, Started
from tests.agent.files.test_progress import reports
from tests.agent.files.test_progress import run as run_with_files
from tests.agent.test_machine import answered, machine_with, run

PAUSE = PowerOrder(1, 5, PowerAction.PAUSE)
RESUME = PowerOrder(1, 6, PowerAction.RESUME)
STOP = PowerOrder(1, 7, PowerAction.STOP, 30_000)


def running() -> AgentMachine:
    machine, _ = machine_with(run(1))
    machine.happened(Started("1", 77, 1_010), 1_010)
    return machine


def test_a_command_reaches_the_driver_once() -> None:
    machine = running()
    assert answered(machine, 1_020, base=1, generation=2, orders=(PAUSE,)) == [PAUSE]
    assert answered(machine, 1_030, generation=3, whole=True, orders=(run(1), PAUSE)) == []
    assert answered(machine, 1_040, base=3, generation=4, orders=(RESUME, PAUSE, STOP)) == [RESUME, STOP]


def test_a_command_for_another_attempt_is_left() -> None:
    assert answered(running(), 1_020, base=1, generation=2, orders=(PowerOrder(9, 1, PowerAction.PAUSE),)) == []


def test_the_state_is_reported_with_the_last_command_and_what_was_wrong_with_it() -> None:
    machine = running()
    machine.happened(PowerChanged("1", Power.PAUSED, 5, 1_020), 1_020)
    report = reports(machine, 1_020)[1]
    assert (report.state, report.power, report.power_serial, report.power_problem) == ("running", "paused", 5, "")
    machine.happened(PowerChanged("1", Power.PAUSED, 6, 1_400, "QEMU does not answer"), 1_030)
    report = reports(machine, 1_400)[1]
    assert (report.power, report.power_serial, report.power_problem) == ("paused", 6, "QEMU does not answer")
    machine.happened(Ended("1", "exited", 1_800, 0), 1_800)
    assert reports(machine, 1_800)[1].power == "", "it has none when it has ended"


def test_a_change_by_the_guest_keeps_the_serial_of_the_last_command() -> None:
    machine = running()
    machine.happened(PowerChanged("1", Power.RUNNING, 5, 1_020), 1_020)
    machine.happened(PowerChanged("1", Power.STOPPED, 0, 1_030), 1_030)
    assert (reports(machine, 1_030)[1].power, reports(machine, 1_500)) == ("stopped", {})
    assert machine.actor.attempts[1].power.serial == 5


def test_a_later_agent_knows_the_state_and_what_was_carried_out() -> None:
    first = run(1)
    machine, effects = machine_with(first)
    (request,) = [effect for effect in effects if isinstance(effect, RunRequest)]
    later, _ = machine_with()
    known = KnownRun("1", request.note, "running", 900, pid=77, power=Power.PAUSED, power_serial=5)
    later.happened(KnownRuns(1_010, 0, [known]), 1_010)
    attempt = later.actor.attempts[1]
    assert (attempt.power.state, attempt.power.serial) == ("paused", 5)
    assert answered(later, 1_020, base=1, generation=2, orders=(PAUSE, RESUME)) == [RESUME]


def test_the_newest_command_waits_with_a_machine_whose_image_is_fetched() -> None:
    machine, _ = machine_with(run_with_files(1, inputs=True))
    assert answered(machine, 1_020, base=1, generation=2, orders=(PAUSE,)) == []
    assert answered(machine, 1_030, base=2, generation=3, orders=(STOP,)) == []
    request, order = machine.fetched(1, None, 1_400)
    assert isinstance(request, RunRequest) and order == STOP
