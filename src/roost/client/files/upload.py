"""One large blob, in pieces that are resumed: while the server stores one of them, the next is on its way."""

import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from roost.client.files.transfer import Link
from roost.ports.blobs import CHUNK_BYTES_MAX
from roost.schema.files import UploadView

PIECE_BYTES = CHUNK_BYTES_MAX // 2  # a server holds pieces whole: two of an upload at most

Read = Callable[[int], memoryview]  # the piece from an offset on; an empty one: there are no such bytes


class Changed(Exception):
    """The file is shorter than it was, or has other bytes."""


class PieceUpload:
    """Links that send the same blob take turns: one begins when the bytes of the other are out.

    Pieces so arrive in order. One that overtakes the other is not kept: the answer says where to go on.
    """

    def __init__(self, path: str, size: int, count: Callable[[int], None]) -> None:
        self._path = path
        self._size = size
        self._count = count
        self._turn = threading.Lock()
        self._next: int | None = None  # where the next piece begins; None: the server was not asked
        self._kept = 0
        self._is_stored = False

    def send(self, read: Read, link: Link) -> None:
        """Send pieces until all are stored, or on their way by another link."""
        answer = None
        while (piece := self._begin(answer, read, link)) is not None:
            turn = _Turn(self._turn)
            try:
                answer = self._put(*piece, link, turn.end)
            finally:
                turn.end()

    def _begin(self, answer: "_Answer | None", read: Read, link: Link) -> tuple[int, memoryview] | None:
        """Note the answer to the piece before. The next piece, with the turn; None: there is none, and no turn."""
        self._turn.acquire()
        try:
            if answer is not None:
                self._note(answer)
            if self._next is None:
                self._note(self._first(read, link))
            at = self._next or 0
            if not self._is_stored and at < self._size:
                piece = read(at)
                if not piece:
                    raise Changed
                self._next = at + len(piece)
                return at, piece
        except BaseException:
            self._turn.release()
            raise
        self._turn.release()
        return None

    def _first(self, read: Read, link: Link) -> "_Answer":
        """Where to go on; or all of it is sent to a URL, and the server is asked what became of it."""
        answer = self._put(0, memoryview(b""), link)
        if not answer.url:
            return answer

        def piece(at: int, _: int) -> memoryview:
            found = read(at)
            self._count(len(found) if at >= self._kept else 0)
            self._kept = max(self._kept, at + len(found))
            return found

        link.put_url(answer.url, self._size, piece)
        return self._put(self._size, memoryview(b""), link)

    def _put(self, at: int, piece: memoryview, link: Link, sent: Callable[[], None] = lambda: None) -> "_Answer":
        answer = link.call("PUT", self._path, {"size": self._size, "offset": at}, piece, sent=sent)
        found = msgspec.json.decode(answer.body, type=UploadView)
        return _Answer(at + len(piece), self._size if found.stored else found.offset, found.stored, found.url)

    def _note(self, answer: "_Answer") -> None:
        self._is_stored |= answer.is_stored
        if self._next is None:
            self._next = answer.kept
        elif answer.kept < answer.end:  # it overtook the piece before, or the server has lost some
            self._next = min(self._next, answer.kept)
        if answer.kept > self._kept:
            self._count(answer.kept - self._kept)
            self._kept = answer.kept


class _Answer(NamedTuple):
    end: int  # of the piece
    kept: int  # up to there, the server has the blob
    is_stored: bool
    url: str = ""  # where all of it can be sent


class _Turn:
    """A lock that is held, and released once: when the bytes are out, or after a failure before that."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock: threading.Lock | None = lock

    def end(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
