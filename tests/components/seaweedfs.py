"""The private S3 server, for tests: one for all tests of a process, a bucket for each."""

import atexit
import functools
import sys
import uuid

import pytest
from roost_lab.components import Missing
from roost_lab.components.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFS

from roost.blobs.bucket import Bucket, S3Config


@functools.cache
def shared_server() -> SeaweedFS:
    try:
        server = SeaweedFS().start()
    except Missing as missing:
        if sys.platform == "linux":  # it is in the development lock
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    atexit.register(server.stop)
    return server


def setting_of(monkeypatch: pytest.MonkeyPatch, more: str = "") -> str:
    """A server's setting for blobs that no other test has; its keys are in the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    return f"s3://roost-tests/test/{uuid.uuid4().hex}?endpoint={shared_server().endpoint}{more}"


def config_of(server: SeaweedFS, **other: object) -> S3Config:
    """The same bucket with another prefix: a new bucket takes SeaweedFS a second."""
    given = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "prefix": f"test/{uuid.uuid4().hex}"}
    return S3Config("roost-tests", endpoint=server.endpoint, **{**given, **other})


def bucket_of(server: SeaweedFS, **other: object) -> Bucket:
    return Bucket(config_of(server, **other))
