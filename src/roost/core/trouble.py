"""What is remembered of runs that ended badly on a node, as long as that may be the node's fault."""


class Trouble:
    """Runs on one node that ended badly soon after their start, since one went well there."""

    __slots__ = ("ends", "times")

    def __init__(self) -> None:
        self.ends: list[tuple[int, str]] = []  # when, and of which workload
        self.times = 0  # how often it was called flaky without a good run in between
