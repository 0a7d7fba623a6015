"""Which images of a node may go: ours, unused, the longest unused first."""

from roost.drivers.container import image_ledger
from roost.drivers.container.image_ledger import ImageLedger, OwnImage


def test_images_that_were_here_before_are_not_ours() -> None:
    ledger = ImageLedger({})
    assert not ledger.used(1, "theirs", "a:1", 5.0, is_ours=False)
    assert ledger.used(2, "ours", "b:1", 6.0, is_ours=True)
    assert ledger.removable(lambda token: False) == ["ours"]


def test_what_a_live_attempt_was_given_stays() -> None:
    ledger = ImageLedger({"old": OwnImage(["a:1"], 1.0), "new": OwnImage(["b:1"], 2.0)})
    assert ledger.removable(lambda token: False) == ["old", "new"]
    assert ledger.used(1, "old", "a:2", 3.0, is_ours=False)
    assert ledger.ours["old"] == OwnImage(["a:1", "a:2"], 3.0)
    assert ledger.removable(lambda token: token == 1) == ["new"]
    assert ledger.removable(lambda token: False) == ["new", "old"], "used last, removed last"


def test_no_more_images_are_remembered_than_fit() -> None:
    ledger = ImageLedger({str(number): OwnImage([], float(number)) for number in range(image_ledger.OURS_MAX)})
    ledger.used(1, "one more", "x", 5_000.0, is_ours=True)
    assert len(ledger.ours) == image_ledger.OURS_MAX and "0" not in ledger.ours
