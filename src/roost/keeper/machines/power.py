"""The power state of one virtual machine, as a machine: commands and what QEMU does go in, what to do goes to a host.

No clock, no process of its own. Commands have a serial and are carried out one after another. A guest that powers off
without a command ends the run; after the command `stop` the supervisor stays, and waits for `start`.
"""

from roost.keeper.clock import NEVER

BOOT_MS_MAX = 120_000  # until QEMU answers: it takes in the firmware, disks and a saved state, on a busy machine
ANSWER_MS_MAX = 15_000  # to a call, which takes milliseconds; longer means that QEMU hangs
PRESS_AGAIN_MS = 3_000  # the power button, for a guest that has only begun to listen
COMMANDS_MAX = 64  # that wait; more is a mistake of the sender
FRESH_MS = 500  # a machine that has just begun: firmware that is reset then may hang, and there is nothing to reset
OFF, BOOTING, UP = "off", "booting", "up"
HUNG = "QEMU does not answer"


class PowerHost:
    """What a machine's power needs of its supervisor; this one does nothing. Each call returns at once."""

    def launch(self) -> None:
        """Start QEMU; `PowerSwitch.booted` or `PowerSwitch.left` is called later."""

    def call(self, name: str) -> None:
        """Ask QEMU for something; `PowerSwitch.answered` is called later."""

    def kill(self) -> None:
        """End QEMU; `PowerSwitch.left` is called later."""

    def report(self, power: str, serial: int, problem: str) -> None:
        """Tell the keeper."""

    def end(self, error: str) -> None:
        """The run is over: with an error, or well."""


class PowerSwitch:
    def __init__(self, host: PowerHost, serial: int) -> None:
        self.host = host
        self.phase = OFF
        self.is_paused = False
        self.serial = serial  # of the last command that was carried out
        self.action = ""  # of the command that is being carried out
        self.action_serial = 0
        self.off_at = NEVER  # when a guest that was asked to power off is ended
        self.press_at = NEVER
        self.booted_at = 0
        self.answer_at = NEVER  # when a call, or QEMU itself, should have answered
        self.waiting: list[tuple[int, str, int]] = []
        self.is_ending = False  # the run is being stopped
        self.problem = ""  # why QEMU was killed

    @property
    def state(self) -> str:
        if self.phase != UP:
            return "stopped"
        return "paused" if self.is_paused else "running"

    # --- from the keeper

    def begin(self, power: str, now: int) -> None:
        if power == "stopped":
            self._report("")
        else:
            self.action, self.action_serial = ("start_paused" if power == "paused" else "start"), self.serial
            self._launch(now)

    def command(self, serial: int, action: str, grace_ms: int, now: int) -> None:
        """A command that is known is left, but a shorter grace of one that is being carried out counts."""
        if serial == self.action_serial and self.off_at != NEVER:
            self.off_at = min(self.off_at, now + grace_ms)
        newest = self.waiting[-1][0] if self.waiting else max(self.serial, self.action_serial)
        if serial <= newest or self.is_ending or len(self.waiting) >= COMMANDS_MAX:
            return
        self.waiting.append((serial, action, grace_ms))
        self._next(now)

    def terminate(self, now: int) -> None:
        """The run is to end. Its grace is the keeper's, which kills what is left."""
        self.is_ending = True
        self.waiting.clear()
        self.action = ""
        self.off_at = NEVER
        if self.phase == OFF:
            self.host.end("")
        elif self.phase == BOOTING:
            self.host.kill()
        else:
            self._press(now)

    # --- from QEMU

    def booted(self, now: int) -> None:
        self.phase, self.is_paused, self.answer_at, self.booted_at = UP, False, NEVER, now
        if self.is_ending:
            self._press(now)
        elif self.action == "start_paused":
            self._call("stop", now)
        else:
            self._done("", now)

    def changed(self, *, is_paused: bool) -> None:
        """It stopped or went on, also by itself: a full disk stops it."""
        if self.phase == UP and is_paused != self.is_paused:
            self.is_paused = is_paused
            if self.action not in ("pause", "resume", "start", "start_paused"):
                self._report("")

    def answered(self, name: str, error: str, now: int) -> None:
        if self.answer_at == NEVER or name == "system_powerdown":
            return
        self.answer_at = NEVER
        if not error and name in ("stop", "cont"):
            self.is_paused = name == "stop"
        if self.action and self.off_at == NEVER:
            self._done(error, now)

    def left(self, error: str, now: int) -> None:
        """QEMU is gone, for this reason; nothing: the guest has powered off, or we have ended it."""
        was_up = self.phase == UP
        self.phase, self.is_paused = OFF, False
        self.answer_at = self.press_at = NEVER
        is_asked = self.off_at != NEVER
        self.off_at = NEVER
        if self.is_ending:
            self.host.end("")
        elif is_asked and self.action == "stop":
            self._done("", now)
        elif is_asked:
            self._launch(now)
        elif self.problem or error or not was_up:
            self.host.end(self.problem or error or "QEMU has ended before its machine began")
        else:
            self.host.end("")

    # --- time

    def next_at(self) -> int:
        return min(self.off_at, self.press_at, self.answer_at)

    def tick(self, now: int) -> None:
        if self.off_at <= now:
            self.press_at = NEVER
            self.off_at = now + ANSWER_MS_MAX  # to be killed takes a moment
            self.host.kill()
        if self.press_at <= now:
            self._press(now)
        if self.answer_at <= now:
            self.answer_at = NEVER
            if self.phase == BOOTING:
                self.problem = f"{HUNG}: it was to start within {BOOT_MS_MAX // 1_000} s"
                self.host.kill()
            elif self.action:
                self._done(HUNG, now)

    # --- one command

    def _next(self, now: int) -> None:
        while self.waiting and not self.action:
            self.action_serial, self.action, grace_ms = self.waiting.pop(0)
            self._carry_out(grace_ms, now)

    def _carry_out(self, grace_ms: int, now: int) -> None:
        action, state = self.action, self.state
        if action == "start" and state == "stopped":
            self._launch(now)
        elif state == "stopped":
            self._done("" if action == "stop" else f"the machine is stopped, so it has nothing to {action}", now)
        elif action in ("stop", "reboot"):
            self.off_at = now + grace_ms
            if grace_ms:
                self._press(now)
            else:
                self.tick(now)
        elif action == "pause":
            self._call("stop", now)
        elif action == "reset" and now < self.booted_at + FRESH_MS:
            self._done("", now)
        elif action == "reset":
            self._call("system_reset", now)
            if self.is_paused:
                self._call("cont", now)
        else:
            self._call("cont", now)

    def _launch(self, now: int) -> None:
        self.phase = BOOTING
        self.answer_at = now + BOOT_MS_MAX
        self.host.launch()

    def _press(self, now: int) -> None:
        """The power button. A paused guest cannot hear it."""
        if self.is_paused:
            self.host.call("cont")
        self.press_at = now + PRESS_AGAIN_MS
        self.host.call("system_powerdown")

    def _call(self, name: str, now: int) -> None:
        self.answer_at = now + ANSWER_MS_MAX
        self.host.call(name)

    def _done(self, problem: str, now: int) -> None:
        self.action = ""
        self.serial = self.action_serial
        self._report(problem)
        self._next(now)

    def _report(self, problem: str) -> None:
        self.host.report(self.state, self.serial, problem)
