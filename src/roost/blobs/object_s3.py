"""Objects in S3 or what speaks its protocol."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from roost.blobs.bucket import Bucket, denied, failing, line_of
from roost.ports.logs import parts_of
from roost.ports.objects import ObjectsUnavailable

CHUNK = 1_000  # keys, as many as S3 lists in one answer

P = ParamSpec("P")
T = TypeVar("T")


def _answering(call: Callable[P, T]) -> Callable[P, T | ObjectsUnavailable]:
    """What S3 refuses after all retries is an answer."""

    @functools.wraps(call)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T | ObjectsUnavailable:
        try:
            return call(*args, **kwargs)
        except (PermissionDeniedError, UnauthenticatedError) as error:
            return ObjectsUnavailable(denied(error))
        except FileNotFoundError as error:
            return ObjectsUnavailable(f"S3 has no such bucket; create it, or correct its name: {line_of(error)}")
        except (BaseError, OSError) as error:
            return ObjectsUnavailable(failing(error))

    return answer


class S3Objects:
    """The Objects port on a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        prefix = bucket.config.prefix.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""

    @property
    def _store(self) -> S3Store:
        return self._bucket.store

    @_answering
    def put(self, key: str, data: bytes) -> None:
        obstore.put(self._store, self._key(key), data, use_multipart=False)

    @_answering
    def get(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, self._key(key)).bytes())
        except FileNotFoundError:
            return None

    @_answering
    def list(self, folder: str, after: str = "", limit: int | None = None) -> list[str]:
        offset = self._key(after) if after else None
        # S3 itself takes whole parts of the path.
        listed = obstore.list(self._store, self._key(folder), offset=offset, chunk_size=limit or CHUNK)
        found = listed.collect() if limit is None else next(iter(listed), [])
        keys = [item["path"].removeprefix(self._prefix) for item in found]
        return keys if limit else sorted(keys)  # SeaweedFS goes folder by folder

    @_answering
    def delete(self, key: str) -> None:
        found = obstore.list(self._store, self._key(key)).collect()
        try:
            obstore.delete(self._store, [self._key(key), *(item["path"] for item in found)])
        except FileNotFoundError:
            pass

    def _key(self, key: str) -> str:
        return self._prefix + "/".join(parts_of(key))
