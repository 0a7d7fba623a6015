"""The store of a simulated world, and what is wrong with it just now."""

from collections.abc import Callable

from roost.stores.memory import Memory


class Disk:
    """One store: of one server alone, or shared by several."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.shared = False
        self.forgetful = False  # it is the memory of the server itself, and dies with it
        self.broken = False  # nothing can be written or read
        self.cut_off: set[str] = set()  # servers that cannot reach it; only ever asked for members
        self.fails = 0.0  # the commit did not happen
        self.unsure = 0.0  # the commit happened, and was reported as failed
        self.slow = 0.0
        self.slow_ms_max = 0
        self.followers: list[Callable[[], None]] = []

    def announce(self) -> None:
        for notified in self.followers:
            notified()

    def repair(self) -> None:
        self.fails = self.unsure = self.slow = 0.0
        self.broken = False
