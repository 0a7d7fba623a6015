"""The results of the health checks of one attempt, pure: whether it is ready, must end, and when to look next.

Not ready → ready after `successes` in a row; ready → not ready after `failures` in a row. One that is still within its
time to start and has never been ready fails as often as it likes.
"""

import msgspec

from roost.model.spec.service import Check

WORDS_EVERY_MS = 10_000  # a check's message may differ each time: in the end it is sent so often at most
FIRST_MS = 250  # until the first look, at most, and then twice as long each time while it starts, up to the interval
_MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: neighbouring tokens are far apart after this


class HealthState(msgspec.Struct):
    """The count of one attempt's checks. An agent that takes it over begins anew, with one that is not ready."""

    check: Check
    ready: bool = False
    served: bool = False  # it has been ready
    well: int = 0  # in a row
    failed: int = 0  # in a row, of those that count
    looks: int = 0
    messages: int = 0  # how often another message alone was reported
    words_ms: int = 0  # before this time, another message alone is not reported

    def probed(self, well: bool, age_ms: int) -> bool:
        """Count one check of a run of this age. True: it has to end."""
        self.looks += 1
        if well:
            self.well, self.failed = self.well + 1, 0
            if self.well >= self.check.successes:
                self.ready = self.served = True
            return False
        self.well = 0
        if self._starts(age_ms):
            return False
        self.failed += 1
        if self.failed < self.check.failures:
            return False
        self.ready = False
        return self.check.restart

    def pause_ms(self, token: int, age_ms: int) -> int:
        """How long until the next look. Runs that began together do not tick together, and the same run always does
        alike: a tenth more or less, by its token."""
        interval_ms = self.check.interval_ms
        if not self.looks or (not self.well and self._starts(age_ms)):
            interval_ms = min(interval_ms, FIRST_MS << min(self.looks, 20))
        chance = ((token + 1) * _MIX + self.looks * (_MIX >> 7)) % (1 << 64) >> 32
        if not self.looks:
            return (interval_ms * chance) >> 32
        return interval_ms * 9 // 10 + ((interval_ms // 5 * chance) >> 32)

    def message_due_ms(self, now: int) -> int:
        """When to report another message alone. The first ones follow soon: a process that does not listen yet is
        refused at first, and what is wrong with it shows only then."""
        due_ms = max(now, self.words_ms)
        self.words_ms = due_ms + min(WORDS_EVERY_MS, FIRST_MS << min(self.messages, 20))
        self.messages += 1
        return due_ms

    def _starts(self, age_ms: int) -> bool:
        return not self.served and age_ms < self.check.start_ms
