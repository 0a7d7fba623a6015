"""Batches: a long run of items, cut by their size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def in_batches(
    items: Iterable[Item], size_of: Callable[[Item], int], bytes_max: int, items_max: int = 1 << 62
) -> Iterator[list[Item]]:
    """Items in order. A batch ends with the item that reaches `bytes_max`, or after `items_max` of them."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= bytes_max or len(batch) == items_max:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
