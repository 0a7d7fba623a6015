"""The power state of one virtual machine, as its agent knows it. No clock, no I/O."""

import msgspec

from roost.model.protocol import PowerOrder


class MachinePower(msgspec.Struct):
    """Empty for other runs."""

    state: str = ""
    serial: int = 0  # of the last command that was carried out, or could not be
    problem: str = ""
    order: PowerOrder | None = None  # the newest

    def ordered(self, order: PowerOrder) -> bool:
        """Whether this command is newer than all that this agent knows of."""
        is_new = order.serial > max(self.serial, self.order.serial if self.order is not None else 0)
        if is_new:
            self.order = order
        return is_new
