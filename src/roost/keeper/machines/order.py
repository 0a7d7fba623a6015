"""What an order says about the virtual machine of a run, checked by hand."""

POWER_STATES = ("running", "paused", "stopped")


class MachineOrder:
    """`body` is what its supervisor gets."""

    def __init__(self, given: object) -> None:
        """Raises ValueError."""
        if not isinstance(given, dict):
            raise ValueError("machine has to be an object with dir, program and memory, or null")
        for name in ("dir", "program"):
            path = given.get(name)
            if not isinstance(path, str) or path[:1] != "/" or "\0" in path:
                raise ValueError(f"machine.{name} has to be an absolute path")
        memory, serial = given.get("memory"), given.get("power_serial", 0)
        if type(memory) is not int or memory <= 0:
            raise ValueError("machine.memory has to be a number of bytes")
        if type(serial) is not int or serial < 0:
            raise ValueError("machine.power_serial has to be a whole number")
        if given.get("power", "running") not in POWER_STATES:
            raise ValueError(f"machine.power has to be one of {', '.join(POWER_STATES)}")
        self.body = given
        self.power_serial: int = serial
