"""Send files: ask what is missing, then small files in packs, large ones in pieces that can be resumed."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from roost.client.errors import ApiError, CannotSend
from roost.client.files.local import Local, LocalFiles
from roost.client.files.transfer import PARALLEL, Job, Link, run_all
from roost.client.files.upload import PIECE_BYTES, Changed, PieceUpload
from roost.client.namespace import path_of
from roost.client.transport import BYTES, JSON, Query, Transport
from roost.files.below import FILE
from roost.files.manifest import SMALL_BYTES, encode
from roost.files.pack import pack
from roost.model.errors import Invalid
from roost.ports.blobs import CHUNK_BYTES_MAX, DIGESTS_MAX, digest_of
from roost.schema.files import Digests, FileSetView, MissingFiles

PACK_BYTES = CHUNK_BYTES_MAX // 2  # of contents, which are at most so large when they cannot be compressed
PACK_FILES = 1_000  # 36 KB of headers
NOT_THERE = ("files_missing", "not_found")
ATTEMPTS = 3  # files that were there may be collected before the set is made; that happens once a day at most

Sent = Callable[[int, int], object]  # called with the bytes that are there, and of how many


class Sender:
    """Sends the files of one project. `sent` is called from several threads, by one at a time."""

    def __init__(self, transport: Transport, project: str, sent: Sent = lambda done, total: None) -> None:
        self._transport = transport
        self._files = path_of("/v1/projects/{}/files", project)
        self._blobs = path_of("/v1/projects/{}/blobs/", project)
        self._sent = sent
        self._lock = threading.Lock()
        self._done = self._total = 0

    def send(self, found: LocalFiles) -> FileSetView:
        """Send what the servers lack, and make it a set. Raises CannotSend, ApiError, Unreachable."""
        manifest = encode(found.manifest)
        digest = digest_of(manifest)
        try:
            # The same files as before are known by their manifest: nothing else is asked for or sent.
            answer = self._transport.call("POST", self._files, {"digest": digest}, b"", BYTES)
            return msgspec.json.decode(answer.body, type=FileSetView)
        except ApiError as error:
            if error.code not in NOT_THERE:
                raise
        link = Link(self._transport, threading.Event())
        for attempt in range(1, ATTEMPTS + 1):
            self._send_missing(found, link)
            query: Query | None = None
            body = manifest
            if len(manifest) > CHUNK_BYTES_MAX:
                self._send_manifest(digest, manifest, link)
                query, body = {"digest": digest}, b""
            try:
                return msgspec.json.decode(link.call("POST", self._files, query, body).body, type=FileSetView)
            except ApiError as error:
                if error.code not in NOT_THERE or attempt == ATTEMPTS:
                    raise
        raise AssertionError("the last attempt raises or returns")

    def _send_missing(self, found: LocalFiles, link: Link) -> None:
        missing: list[str] = []
        digests = list(found.places)
        for start in range(0, len(digests), DIGESTS_MAX):
            body = msgspec.json.encode(Digests(digests[start : start + DIGESTS_MAX]))
            answer = link.call("POST", f"{self._files}/missing", None, body, JSON)
            missing += msgspec.json.decode(answer.body, type=MissingFiles).missing
        wanted = [found.places[digest] for digest in missing]
        self._done, self._total = 0, sum(local.file.size for local in wanted)
        large = [job for local in wanted if local.file.size >= SMALL_BYTES for job in self._large_jobs(local)]
        small = [local for local in wanted if local.file.size < SMALL_BYTES]
        run_all(self._transport, [*large, *(partial(self._send_pack, batch) for batch in _batches(small))])

    def _large_jobs(self, local: Local) -> list[Job]:
        """Two links send the pieces of one file, so that a single large file is no slower than many."""
        upload = PieceUpload(self._blobs + local.file.digest, local.file.size, self._count)
        return [partial(self._send_large, local, upload)] * (PARALLEL if local.file.size > PIECE_BYTES else 1)

    def _send_pack(self, batch: list[Local], link: Link) -> None:
        try:
            body = b"".join(pack(batch[0].root, [local.file for local in batch]))
        except Invalid as error:
            raise CannotSend(os.path.join(batch[0].root, error.path), error.message) from None
        except OSError as error:
            path = os.path.join(batch[0].root, error.filename or "")
            raise CannotSend(path, error.strerror or str(error)) from None
        link.call("POST", f"{self._files}/pack", None, body)
        self._count(sum(local.file.size for local in batch))

    def _send_large(self, local: Local, upload: PieceUpload, link: Link) -> None:
        path = local.root / local.file.path
        buffer = memoryview(bytearray(PIECE_BYTES))
        try:
            descriptor = os.open(path, FILE)
            try:
                upload.send(lambda at: buffer[: os.preadv(descriptor, [buffer[: local.file.size - at]], at)], link)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CannotSend(str(path), error.strerror or str(error)) from None
        except (ApiError, Changed) as error:
            if isinstance(error, ApiError) and error.code != "wrong_bytes":
                raise
            raise CannotSend(str(path), "changed while it was sent") from None

    def _send_manifest(self, digest: str, data: bytes, link: Link) -> None:
        upload = PieceUpload(self._blobs + digest, len(data), lambda length: None)
        upload.send(lambda at: memoryview(data)[at : at + PIECE_BYTES], link)

    def _count(self, length: int) -> None:
        with self._lock:
            self._done += length
            self._sent(self._done, self._total)


def _batches(files: Iterable[Local]) -> Iterator[list[Local]]:
    """Files for packs: a pack has files of one root, and bounds."""
    batch: list[Local] = []
    size = 0
    for local in files:
        is_full = len(batch) == PACK_FILES or size + local.file.size > PACK_BYTES
        if batch and (is_full or local.root is not batch[0].root):
            yield batch
            batch, size = [], 0
        batch.append(local)
        size += local.file.size
    if batch:
        yield batch
