"""How the state lies in etcd: which keys there are, what they hold, and why a commit is whole to every reader.

Under the prefix, `/roost` by default:

    epoch                     the number of the epoch that may write; changes when a server takes the lead
    lead                      the whole Lead; changes with every renewal too
    head                      our revision and the last commit's mark; written by every commit
    record/<kind>/<key>       one record, its value as it is (the kind is percent-encoded, the key is not)
    part/<digest>/<mark>/<n>  a value that is too large for one request, in parts; the first begins with whose it is
    stage/<mark>/<n>          a commit that is too large for one transaction, on its way in

Every write is a transaction that compares `epoch`, so a former leader can never write, and `head`, so a transaction
that was delayed or sent twice is applied at most once. Each transaction has a new mark: a writer that lost the
answer finds its own mark in the head, or does not.

A **small commit**, the usual case, is one transaction: the head and the records. Several that wait become one. etcd
tells a watcher the events of a transaction together, so a follower sees the head and its records at once.

A **large commit** (more operations or bytes than one transaction takes, or a value in parts) goes in four steps:

1. stage: its changes as one string of bytes, cut into `stage/<mark>/<n>`; no reader looks there;
2. publish: one small transaction writes the head with `pending` = (mark, count, size, checksum). It also compares that
   the first piece is there, so that it cannot come late, after a sweep. From here on the commit has happened, and is
   answered;
3. spread: the records are written from the pieces, in as many transactions as it takes, in any order, perhaps twice
   (new parts have keys of their own, so that no delayed deletion of old ones can hit them);
4. finish: one transaction writes the head without `pending` and deletes the pieces.

A reader sees the commit if and only if the head says so: a load puts the pending changes over the records (whichever
of them are spread already), and a follower reads the pieces as of the head's own etcd revision and takes no notice of
records that change without the head. Nothing else is committed between 2 and 4, so what is pending is always the
newest. A writer that dies before 2 leaves pieces that the next one sweeps before its first commit; one that dies after
2 leaves 3 and 4 to it. Pieces are compared with the epoch too, so a leader that lost the lead between two of them is
fenced there.

Our revision counts commits and has nothing to do with etcd's. Where a revision of ours lies among etcd's is found by
asking for the head as of older etcd revisions (`read.position`), as far back as etcd has not compacted.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from roost.ports.store import Change, Damaged, Lead, StoreError
from roost.stores.group_commit import check_storable

# One put with its key has to fit into etcd's default request of 1.5 MiB, beside the comparisons and the head.
PIECE_BYTES = 1 << 20

# Keys are kept in memory by every member of etcd; names people type are shorter.
KEY_BYTES_MAX = 32 << 10

# A large commit is in memory several times while it is cut and joined, and twice in etcd, whose quota is 2 GiB.
COMMIT_BYTES_MAX = 256 << 20

T = TypeVar("T")

Changes = dict[bytes, bytes | None]  # by `<kind>/<key>` as in the record's key; the last change of a record counts


class PendingCommit(msgspec.Struct, frozen=True):
    mark: str
    count: int
    size: int
    checksum: int


class Head(msgspec.Struct, frozen=True):
    """What is committed. `since` is the revision before this write: a follower without that one has missed some."""

    revision: int = 0
    since: int = 0
    epoch: int = 0
    mark: str = ""
    pending: PendingCommit | None = None


class _StoredLead(msgspec.Struct, frozen=True):
    epoch: int
    identity: str
    renewals: int
    successor: str
    mark: str = ""  # which call of `lead` this was, for the one that lost the answer


class _StoredPart(msgspec.Struct, frozen=True, array_like=True):
    record: bytes
    size: int
    checksum: int


class Layout:
    def __init__(self, prefix: str) -> None:
        root = prefix.rstrip("/").encode() + b"/"
        self.epoch = root + b"epoch"
        self.lead = root + b"lead"
        self.head = root + b"head"
        self.records = root + b"record/"
        self.parts = root + b"part/"
        self.stage = root + b"stage/"
        self.all = root

    def piece(self, mark: str, number: int) -> bytes:
        return self.stage + b"%s/%06d" % (mark.encode(), number)

    def pieces(self, mark: str) -> bytes:
        return self.stage + mark.encode() + b"/"

    def parts_of(self, record: bytes) -> bytes:
        """A digest, because one record's key may begin with another's."""
        return self.parts + blake2b(record, digest_size=16).hexdigest().encode()

    def owner_of(self, part: bytes) -> bytes:
        return part[: part.index(b"/", len(self.parts))]

    def change(self, key: bytes, value: bytes | None) -> Change:
        return named(key[len(self.records) :], value)


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with a prefix (which ends with a slash)."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def encode_changes(changes: Sequence[Change]) -> Changes:
    """Raises TypeError or ValueError for what cannot be stored."""
    encoded: Changes = {}
    size = 0
    check_storable(changes)
    for change in changes:
        name = _kind_message(change.kind) + change.key.encode()
        if len(name) > KEY_BYTES_MAX:
            message = f"{change.kind} {change.key[:40]}...: a key of {len(name)} bytes; at most {KEY_BYTES_MAX}"
            raise ValueError(message)
        encoded[name] = change.value
        size += len(name) + len(change.value or b"")
    if size > COMMIT_BYTES_MAX:
        raise ValueError(f"a commit of {size} bytes is too large for etcd; at most {COMMIT_BYTES_MAX}")
    return encoded


def named(record: bytes, value: bytes | None) -> Change:
    kind, _, key = record.partition(b"/")
    return Change(_kind(kind), key.decode(), value)


@lru_cache(maxsize=1_000)  # a few dozen kinds are all there are
def _kind_message(kind: str) -> bytes:
    return quote(kind, safe="").encode() + b"/"


@lru_cache(maxsize=1_000)
def _kind(message: bytes) -> str:
    return unquote(message.decode())


def decode_head(value: bytes | None) -> Head:
    """None: nothing was committed yet."""
    return Head() if value is None else _decoded(value, Head, "head")


def encode_lead(lead: Lead, mark: str = "") -> bytes:
    return msgspec.json.encode(_StoredLead(*lead, mark))


def decode_lead(value: bytes | None) -> tuple[Lead, str]:
    """The lead, and the mark of the call that took it. None: no server ever led."""
    if value is None:
        return Lead(), ""
    message = _decoded(value, _StoredLead, "lead")
    return Lead(message.epoch, message.identity, message.renewals, message.successor), message.mark


def cut(changes: Changes, mark: str) -> tuple[PendingCommit, list[bytes]]:
    content = msgspec.msgpack.encode(list(changes.items()))
    pieces = _pieces(content)
    return PendingCommit(mark, len(pieces), len(content), zlib.crc32(content)), pieces


def joined(pending: PendingCommit, pieces: Iterable[bytes]) -> Changes:
    content = b"".join(pieces)
    if len(content) != pending.size or zlib.crc32(content) != pending.checksum:
        raise StoreError(Damaged(f"stage/{pending.mark} in etcd is not what was written: restore a snapshot of etcd"))
    return dict(msgspec.msgpack.decode(content, type=list[tuple[bytes, bytes | None]]))


def parts(record: bytes, value: bytes) -> list[bytes]:
    """A large value as parts that can be put together without anything else."""
    message = msgspec.msgpack.encode(_StoredPart(record, len(value), zlib.crc32(value)))
    return _pieces(len(message).to_bytes(4) + message + value)


def _pieces(content: bytes) -> list[bytes]:
    return [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]


def put_together(pieces: Iterable[bytes]) -> tuple[bytes, bytes]:
    content = b"".join(pieces)
    start = 4 + int.from_bytes(content[:4])
    message = _decoded(content[4:start], _StoredPart, "part", msgspec.msgpack.decode)
    value = content[start:]
    if len(value) != message.size or zlib.crc32(value) != message.checksum:
        raise StoreError(
            Damaged(f"the parts of {message.record!r} in etcd are not what was written: restore a snapshot of etcd")
        )
    return message.record, value


def _decoded(value: bytes, form: type[T], what: str, decode: Callable[..., T] = msgspec.json.decode) -> T:
    try:
        return decode(value, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(Damaged(f"{what} in etcd cannot be read ({error}): is the prefix Roost's own?")) from error
