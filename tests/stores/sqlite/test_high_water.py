"""The decision about lost commits, without a file: what is noticed, and that nothing whole is refused."""

import pytest

from roost.stores.sqlite.high_water import (
    Acknowledged,
    LossKind,
    StoreLoss,
    decode_mark,
    encode_mark,
    find_loss,
    loss_message,
)

MARK = Acknowledged("a" * 32, 24, 3)


@pytest.mark.parametrize(
    "found, loss",
    [
        (MARK, None),
        (MARK._replace(revision=30, epoch=4), None),  # a mark without an fsync may be behind
        (None, StoreLoss(LossKind.DATABASE_GONE, 24)),
        (MARK._replace(identity="b" * 32), StoreLoss(LossKind.OTHER_DATABASE)),
        (MARK._replace(revision=23), StoreLoss(LossKind.COMMITS_MISSING, 24, 23)),
        (MARK._replace(epoch=2), StoreLoss(LossKind.EPOCH_MISSING, 3, 2)),
    ],
)
def test_a_database_that_has_less_than_its_mark_has_a_loss(found: Acknowledged | None, loss: StoreLoss | None) -> None:
    assert find_loss(MARK, found) == loss
    assert loss is None or loss_message(loss)


def test_any_flipped_bit_of_a_mark_is_noticed() -> None:
    data = encode_mark(MARK)
    assert decode_mark(data) == MARK
    for at in range(len(data)):
        for bit in range(8):
            assert decode_mark(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]) is None
