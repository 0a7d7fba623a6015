"""The power of a machine, without any: commands and what QEMU does lead to calls, reports and ends."""

from roost.keeper.clock import NEVER
from roost.keeper.machines.power import ANSWER_MS_MAX, BOOT_MS_MAX, FRESH_MS, PRESS_AGAIN_MS, PowerHost, PowerSwitch

NOW = 1_000_000


class RecordingHost(PowerHost):
    def __init__(self) -> None:
        self.did: list[object] = []

    def launch(self) -> None:
        self.did.append("launch")

    def call(self, name: str) -> None:
        self.did.append(name)

    def kill(self) -> None:
        self.did.append("kill")

    def report(self, power: str, serial: int, problem: str) -> None:
        self.did.append((power, serial, problem))

    def end(self, error: str) -> None:
        self.did.append(("end", error))

    def take(self) -> list[object]:
        did, self.did = self.did, []
        return did


def switched(*, up: bool = True, serial: int = 0) -> tuple[PowerSwitch, RecordingHost]:
    host = RecordingHost()
    switch = PowerSwitch(host, serial)
    switch.begin("running" if up else "stopped", NOW)
    if up:
        switch.booted(NOW)
    host.take()
    return switch, host


def test_a_machine_begins_and_its_guest_ends_it() -> None:
    host = RecordingHost()
    switch = PowerSwitch(host, 3)
    switch.begin("running", NOW)
    switch.booted(NOW + 1)
    switch.left("", NOW + 2)
    assert host.take() == ["launch", ("running", 3, ""), ("end", "")]
    assert switch.next_at() == NEVER


def test_a_stop_presses_the_button_again_and_ends_qemu_after_the_grace() -> None:
    switch, host = switched()
    switch.command(1, "stop", 5_000, NOW)
    assert host.take() == ["system_powerdown"]
    switch.answered("system_powerdown", "", NOW)
    switch.tick(NOW + PRESS_AGAIN_MS)
    assert host.take() == ["system_powerdown"]
    switch.tick(NOW + 5_000)
    assert host.take() == ["kill"]
    switch.left("", NOW + 5_001)
    assert host.take() == [("stopped", 1, "")]
    assert switch.next_at() == NEVER


def test_a_shorter_grace_counts_and_a_known_serial_does_nothing() -> None:
    switch, host = switched()
    switch.command(1, "stop", 60_000, NOW)
    switch.command(1, "stop", 90_000, NOW)
    switch.command(1, "stop", 1_000, NOW)
    host.take()
    switch.tick(NOW + 1_000)
    assert host.take() == ["kill"]
    switch.left("", NOW)
    switch.command(1, "stop", 0, NOW)
    assert host.take() == [("stopped", 1, "")]


def test_commands_wait_for_each_other() -> None:
    switch, host = switched()
    for serial, action in enumerate(("pause", "resume", "reboot", "pause"), 1):
        switch.command(serial, action, 5_000, NOW)
    assert host.take() == ["stop"]
    switch.changed(is_paused=True)
    switch.answered("stop", "", NOW)
    assert host.take() == [("paused", 1, ""), "cont"]
    switch.answered("cont", "", NOW)
    assert host.take() == [("running", 2, ""), "system_powerdown"]
    switch.left("", NOW)
    assert host.take() == ["launch"]
    switch.booted(NOW)
    assert host.take() == [("running", 3, ""), "stop"]


def test_a_paused_guest_goes_on_to_hear_the_button() -> None:
    switch, host = switched()
    switch.command(1, "pause", 0, NOW)
    switch.answered("stop", "", NOW)
    host.take()
    switch.command(2, "stop", 5_000, NOW)
    assert host.take() == ["cont", "system_powerdown"]
    switch.answered("cont", "", NOW)
    switch.left("", NOW)
    assert host.take() == [("stopped", 2, "")]


def test_what_a_stopped_machine_cannot_do_is_a_problem() -> None:
    switch, host = switched(up=False)
    for serial, action in enumerate(("pause", "resume", "reboot", "reset"), 1):
        switch.command(serial, action, 0, NOW)
        assert host.take() == [("stopped", serial, f"the machine is stopped, so it has nothing to {action}")]


def test_a_reset_of_a_machine_that_has_just_begun_is_done() -> None:
    switch, host = switched()
    switch.command(1, "reset", 0, NOW + FRESH_MS - 1)
    assert host.take() == [("running", 1, "")]
    switch.command(2, "reset", 0, NOW + FRESH_MS)
    assert host.take() == ["system_reset"]
    switch.answered("system_reset", "", NOW)
    assert host.take() == [("running", 2, "")]


def test_qemu_that_does_not_answer_is_a_problem_of_the_command() -> None:
    switch, host = switched()
    switch.command(1, "pause", 0, NOW)
    switch.tick(NOW + ANSWER_MS_MAX)
    assert host.take() == ["stop", ("running", 1, "QEMU does not answer")]


def test_qemu_that_does_not_begin_is_ended() -> None:
    host = RecordingHost()
    switch = PowerSwitch(host, 0)
    switch.begin("running", NOW)
    switch.tick(NOW + BOOT_MS_MAX)
    assert host.take() == ["launch", "kill"]
    switch.left("", NOW)
    assert host.take() == [("end", f"QEMU does not answer: it was to start within {BOOT_MS_MAX // 1_000} s")]


def test_an_end_of_the_run_goes_before_commands() -> None:
    switch, host = switched()
    switch.command(1, "reboot", 5_000, NOW)
    switch.command(2, "pause", 5_000, NOW)
    switch.terminate(NOW)
    switch.command(3, "start", 5_000, NOW)
    host.take()
    switch.left("", NOW)
    assert host.take() == [("end", "")]
    stopped, host = switched(up=False)
    stopped.terminate(NOW)
    assert host.take() == [("end", "")]


def test_a_guest_that_stops_by_itself_is_reported() -> None:
    switch, host = switched(serial=7)
    switch.changed(is_paused=True)
    switch.changed(is_paused=True)
    switch.changed(is_paused=False)
    assert host.take() == [("paused", 7, ""), ("running", 7, "")]


def test_the_death_of_qemu_is_an_error() -> None:
    switch, host = switched()
    switch.left("QEMU was ended by signal 11", NOW)
    assert host.take() == [("end", "QEMU was ended by signal 11")]
