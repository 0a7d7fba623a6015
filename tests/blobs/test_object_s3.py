"""The objects in S3 keep the contract on a real server; one that is away is an answer."""

import uuid

import pytest

from roost.blobs.bucket import Bucket, S3Config
from roost.blobs.object_s3 import S3Objects
from roost.ports.objects import Objects, ObjectsUnavailable
from tests.blobs.object_contract import KEY, ObjectsContract
from tests.components.seaweedfs import bucket_of, shared_server


class TestS3Objects(ObjectsContract):
    @pytest.fixture
    def objects(self) -> Objects:
        return S3Objects(bucket_of(shared_server(), prefix=f"roost/{uuid.uuid4().hex}"))


def test_a_server_that_is_away_is_an_answer() -> None:
    config = S3Config("bucket", endpoint="http://127.0.0.1:1", access_key="a", secret_key="b", retry_s=0.1)
    outcome = S3Objects(Bucket(config)).put(KEY, b"x")
    assert isinstance(outcome, ObjectsUnavailable) and "S3" in outcome.reason
