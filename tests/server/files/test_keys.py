"""Sealed credentials of the blob store: used by a server that runs, never shown, and harmless where they fail."""

import os
from pathlib import Path

import msgspec
import pytest

from roost.blobs.bucket import Bucket
from roost.blobs.s3 import S3Blobs
from roost.model.events import PutRecords
from roost.model.records.opaque import OpaqueRecord
from roost.ports.blobs import BlobsUnavailable, digest_of
from roost.schema.access.blob_keys import BlobKeysBody
from roost.server.files.keys import NAME, BlobKeys
from roost.server.pki.encryption import Seal
from roost.server.pki.secrets import BLOB_KEYS
from tests.components.seaweedfs import ACCESS_KEY, SECRET_KEY, bucket_of, shared_server
from tests.server.inprocess_server import KEY, InprocessServer, inprocess_server

GOOD = BlobKeysBody(ACCESS_KEY, SECRET_KEY)
WRONG = BlobKeysBody(ACCESS_KEY, "revoked-4711")
PATH = "/v1/blobs/credentials"


def with_bucket(made: InprocessServer, bucket: Bucket) -> BlobKeys:
    keys = BlobKeys(made.engine, bucket)
    keys.seal = Seal(KEY)
    made.context = made.context._replace(blob_keys=keys)
    made.dispatcher.context = made.context
    return keys


async def put(made: InprocessServer, record: OpaqueRecord) -> None:
    await made.engine.ask(lambda request: PutRecords(request, (record,), ""))


async def set_keys(made: InprocessServer, keys: BlobKeysBody, **query: object) -> tuple[int, str]:
    answer = await made.client.put(PATH, json=msgspec.to_builtins(keys), params={**query})
    return answer.status_code, answer.text


async def test_keys_that_were_revoked_are_replaced_without_a_restart(tmp_path: Path) -> None:
    bucket = bucket_of(shared_server(), secret_key="revoked-4711")
    blobs = S3Blobs(bucket, tmp_path)
    async with inprocess_server() as made:
        with_bucket(made, bucket)
        refused = await blobs.put([(digest_of(b"x"), b"x")])
        assert isinstance(refused, BlobsUnavailable) and refused.denied
        status, text = await set_keys(made, WRONG)
        assert status == 422 and "credentials_refused" in text and "S3 refuses the credentials" in text
        assert "4711" not in text and not (await made.get(PATH))["sealed"], "and nothing was kept"
        status, text = await set_keys(made, GOOD)
        assert status == 200 and SECRET_KEY not in text and ACCESS_KEY not in text
        assert await blobs.put([(digest_of(b"x"), b"x")]) is None
        shown = await made.get(PATH)
        assert (shown["sealed"], shown["readable"], shown["bucket"]) == (True, True, "roost-tests")
        assert not {ACCESS_KEY, SECRET_KEY} & set(map(str, shown.values()))
        record = made.engine.state.opaque_records[BLOB_KEYS][NAME]
        assert SECRET_KEY.encode() not in record and ACCESS_KEY.encode() not in record
        assert (await made.client.delete(PATH)).status_code == 204
        assert isinstance(await blobs.put([(digest_of(b"y"), b"y")]), BlobsUnavailable), "those of the start again"
        assert (await made.client.delete(PATH)).status_code == 404


async def test_another_server_takes_over_what_is_committed(tmp_path: Path) -> None:
    bucket = bucket_of(shared_server(), secret_key="revoked-4711")
    async with inprocess_server() as made:
        with_bucket(made, bucket_of(shared_server()))
        standby = BlobKeys(made.engine, bucket)
        standby.seal = Seal(KEY)
        assert bucket.check() and (await set_keys(made, GOOD))[0] == 200
        standby.apply()
        assert bucket.check() == ""


async def test_keys_that_cannot_be_opened_change_nothing_and_are_reported() -> None:
    bucket = bucket_of(shared_server())
    async with inprocess_server() as made:
        keys = with_bucket(made, bucket)
        other = BlobKeys(made.engine, bucket)
        other.seal = Seal(os.urandom(32))
        await put(made, other.record(WRONG, "ann"))
        keys.apply()
        assert bucket.check() == ""
        assert (await made.get(PATH))["readable"] is False
        await put(made, OpaqueRecord(BLOB_KEYS, NAME, b"damaged"))
        keys.apply()
        assert bucket.check() == "" and (await made.get(PATH))["readable"] is False


async def test_a_new_seal_key_seals_them_again() -> None:
    new = os.urandom(32)
    async with inprocess_server() as made:
        keys = with_bucket(made, bucket_of(shared_server()))
        assert (await set_keys(made, GOOD))[0] == 200
        made.secrets.seal = keys.seal = Seal(new, KEY)
        assert (await made.get(PATH))["newest_key"] is False
        assert (await made.post("/v1/secrets/reseal", {}))["resealed"] == 1
        keys.seal = Seal(new)
        assert (await made.get(PATH))["readable"] and (await made.get(PATH))["newest_key"]


async def test_without_a_bucket_there_are_no_credentials() -> None:
    async with inprocess_server() as made:
        assert (await made.get(PATH))["bucket"] == ""
        status, text = await set_keys(made, GOOD)
        assert status == 409 and "no_bucket" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [("endpoint", "ftp://x"), ("endpoint", "https://key:secret@x"), ("region", "a b"), ("secret_key", "")],
)
async def test_what_is_wrong_is_named_and_never_repeated(field: str, value: str) -> None:
    async with inprocess_server() as made:
        body = {"access_key": "a", "secret_key": "hidden-4711", field: value}
        answer = await made.client.put(PATH, json=body)
        assert answer.status_code == 422 and answer.json()["path"] == field
        assert "4711" not in answer.text
    assert "4711" not in repr(BlobKeysBody("a", "hidden-4711"))
