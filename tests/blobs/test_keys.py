"""Keys of S3 in a file: used if it is private and complete, else refused without a word of it."""

from pathlib import Path

import pytest
from roost_lab.components.seaweedfs import ACCESS_KEY, SECRET_KEY

from roost.blobs.factory import check_blobs, open_place
from roost.blobs.keys import FILE_BYTES_MAX, S3Keys, read_keys
from roost.model.errors import Invalid
from tests.blobs.contract import DIGEST, WHOLE
from tests.components.seaweedfs import shared_server

GOOD = "# of the bucket\nAWS_ACCESS_KEY_ID=me\n\nAWS_SECRET_ACCESS_KEY = hidden=4711\n".replace(" = ", "=")


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_the_lines_of_a_file_are_keys(tmp_path: Path) -> None:
    assert read_keys("") == S3Keys()
    assert read_keys(written(tmp_path, GOOD)) == S3Keys("me", "hidden=4711")
    assert read_keys(written(tmp_path, GOOD + "AWS_SESSION_TOKEN=t")) == S3Keys("me", "hidden=4711", "t")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(Invalid, match="mode 0600") as refused:
        check_blobs(f"s3://bucket/a?keys={written(tmp_path, GOOD, mode)}")
    assert refused.value.path == "blobs" and "4711" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AWS_ACCESS_KEY_ID=4711",
        "AWS_ACCESS_KEY_ID=me\nAWS_SECRET_ACCESS_KEY=",
        GOOD + "OTHER=1",
        GOOD + "x" * FILE_BYTES_MAX,
        GOOD + "\u00fc",
    ],
)
def test_a_file_without_the_lines_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match="AWS_SECRET_ACCESS_KEY=[.]") as refused:
        read_keys(written(tmp_path, text))
    assert "4711" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(Invalid, match=f"keys={path}: "):
            read_keys(str(path))


async def test_blobs_and_objects_use_the_keys_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    keys = written(tmp_path, f"AWS_ACCESS_KEY_ID={ACCESS_KEY}\nAWS_SECRET_ACCESS_KEY={SECRET_KEY}\n")
    setting = f"s3://roost-tests/{tmp_path.name}?endpoint={shared_server().endpoint}&keys={keys}"
    assert await open_place(setting, tmp_path).blobs.project("default").put([(DIGEST, WHOLE)]) is None
    assert open_place(setting, tmp_path).objects.get("none") is None
