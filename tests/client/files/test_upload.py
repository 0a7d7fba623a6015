"""The pieces of a large blob: in order, by several links, also when one piece overtakes another."""

import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from roost.client.errors import Unreachable
from roost.client.files.upload import PIECE_BYTES, Changed, PieceUpload
from roost.client.transport import HttpAnswer

DATA = os.urandom(5 * PIECE_BYTES + 7)


class Store:
    """Keeps pieces as a server does: what begins beyond the end is not kept."""

    def __init__(self, kept: int = 0) -> None:
        self.data = bytearray(DATA[:kept])
        self.offsets: list[int] = []
        self._lock = threading.Lock()

    def put(self, query: dict[str, int], body: memoryview) -> HttpAnswer:
        with self._lock:
            offset = query["offset"]
            self.offsets.append(offset)
            if body and offset <= len(self.data):
                self.data[offset : offset + len(body)] = body
            stored = len(self.data) == query["size"]
            return HttpAnswer({}, msgspec.json.encode({"offset": len(self.data), "stored": stored}))


class FakeLink:
    def __init__(self, store: Store, before: Callable[[int], object] = lambda offset: None) -> None:
        self._store = store
        self._before = before

    def call(self, method: str, path: str, query: Any, body: memoryview, sent: Callable[[], None]) -> HttpAnswer:
        sent()
        self._before(query["offset"] if body else -1)
        return self._store.put(query, body)


def upload(counted: list[int]) -> PieceUpload:
    return PieceUpload("/blob", len(DATA), counted.append)


def read(at: int) -> memoryview:
    return memoryview(DATA)[at : at + PIECE_BYTES]


def test_pieces_in_order_from_where_the_server_is() -> None:
    counted: list[int] = []
    store = Store(kept=PIECE_BYTES + 1)
    upload(counted).send(read, FakeLink(store))  # type: ignore[arg-type]
    assert store.data == DATA
    assert store.offsets == [0, *range(PIECE_BYTES + 1, len(DATA), PIECE_BYTES)]
    assert counted[0] == PIECE_BYTES + 1 and sum(counted) == len(DATA)


def test_piece_that_overtakes_another_is_sent_again() -> None:
    store, counted = Store(), []
    shared = upload(counted)
    overtaken = threading.Event()
    begun = threading.Event()

    def wait(offset: int) -> None:
        if offset == 0:
            begun.set()
            overtaken.wait(10)

    class Second(FakeLink):
        def call(self, *given: Any, **named: Any) -> HttpAnswer:
            answer = super().call(*given, **named)
            overtaken.set()
            return answer

    threads = [
        threading.Thread(target=shared.send, args=(read, FakeLink(store, wait))),
        threading.Thread(target=shared.send, args=(read, Second(store))),
    ]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(10)
    assert store.data == DATA and sum(counted) == len(DATA)
    assert store.offsets[1] == PIECE_BYTES and store.offsets.count(PIECE_BYTES) >= 2


def test_failed_link_gives_the_turn_back() -> None:
    def fail(offset: int) -> None:
        if offset >= 0:
            raise Unreachable("gone")

    store, counted = Store(), []
    shared = upload(counted)
    with pytest.raises(Unreachable):
        shared.send(read, FakeLink(store, fail))  # type: ignore[arg-type]
    with pytest.raises(Changed):  # and so does one whose file has no more bytes
        shared.send(lambda at: memoryview(b""), FakeLink(store))  # type: ignore[arg-type]
    assert shared._turn.acquire(blocking=False)
