"""What nodes really use: a smoothed share of what each has. It is heard, never stored, and forgotten on a restart."""

WHOLE = 1_000_000  # all of a resource; the same as a score of 1
HALF_LIFE_MS = (
    30_000  # a change of load counts half after so long: a compiler's burst is passed over, a new load is not
)
NEWS = WHOLE // 100  # a share that moved by less is not told: each telling costs a look at the row by every shortlist
HALVINGS_MAX = 40  # after so many half-lives nothing is left of what was


class Gauge:
    """The measured shares of one node: as smoothed, and as last told."""

    __slots__ = ("at_ms", "smooth", "told")

    def __init__(self) -> None:
        self.at_ms = -1
        self.smooth: dict[str, int] = {}
        self.told: dict[str, int] = {}

    def hear(self, shares: dict[str, int], now_ms: int) -> bool:
        """Take in a measurement; whether a share moved far enough to be told."""
        kept = kept_of(now_ms - self.at_ms) if self.at_ms >= 0 else 0
        self.at_ms = max(now_ms, self.at_ms)
        for resource, share in shares.items():
            before = self.smooth.get(resource, share)
            self.smooth[resource] = (before * kept + share * (WHOLE - kept)) // WHOLE
        if all(abs(share - self.told.get(resource, 0)) <= NEWS for resource, share in self.smooth.items()):
            return False
        self.told = dict(self.smooth)
        return True


def share_of(used: int, total: int) -> int:
    """A share in 0..WHOLE; of nothing it is 0."""
    return min(max(used, 0), total) * WHOLE // total if total > 0 else 0


def kept_of(past_ms: int) -> int:
    """How much of an old value counts after a time: a half to the power of the half-lives gone by, in 0..WHOLE.

    Between two halvings the power is drawn by the parabola 1 - (4x - x*x) / 6, which is off by less than 1 %.
    """
    if past_ms <= 0:
        return WHOLE
    halvings, rest = divmod(past_ms, HALF_LIFE_MS)
    if halvings >= HALVINGS_MAX:
        return 0
    square = 6 * HALF_LIFE_MS * HALF_LIFE_MS
    return WHOLE * (square - 4 * rest * HALF_LIFE_MS + rest * rest) // square >> halvings
