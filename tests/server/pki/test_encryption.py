"""What is sealed can be opened only with the key and under the name it was sealed with."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from roost.model.errors import Invalid
from roost.server.pki.encryption import Seal, Unsealable, key_from_command, key_from_file, make_key_file

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def test_what_was_sealed_is_opened_again_and_looks_different_each_time() -> None:
    seal = Seal(KEY)
    sealed = seal.seal("web/db", b"hunter2")
    assert b"hunter2" not in sealed and sealed != seal.seal("web/db", b"hunter2")
    assert seal.open("web/db", sealed) == b"hunter2"


@pytest.mark.parametrize("at", [0, 1, 5, 17, -1])
def test_an_altered_value_is_not_opened(at: int) -> None:
    seal = Seal(KEY)
    sealed = bytearray(seal.seal("web/db", b"hunter2"))
    sealed[at] ^= 1
    with pytest.raises(Unsealable):
        seal.open("web/db", bytes(sealed))


def test_a_value_in_the_place_of_another_is_not_opened() -> None:
    seal = Seal(KEY)
    with pytest.raises(Unsealable, match="web/other is not what was sealed"):
        seal.open("web/other", seal.seal("web/db", b"hunter2"))


@pytest.mark.parametrize("short", [b"", b"\x01", b"\x01abcd", b"\x01abcd1234"])
def test_what_was_never_sealed_is_not_opened(short: bytes) -> None:
    with pytest.raises(Unsealable):
        Seal(KEY).open("web/db", short)


def test_an_older_key_opens_and_the_newest_seals() -> None:
    old = Seal(OTHER).seal("web/db", b"hunter2")
    both = Seal(KEY, OTHER)
    assert both.open("web/db", old) == b"hunter2" and not both.is_newest(old)
    assert both.is_newest(both.seal("web/db", b"hunter2"))
    with pytest.raises(Unsealable, match="a key that is not here"):
        Seal(KEY).open("web/db", old)


def test_a_key_file_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    key = make_key_file(path)
    assert make_key_file(path) == key == key_from_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(key) == 32


def test_a_key_comes_from_a_command(tmp_path: Path) -> None:
    assert key_from_command(f"echo {KEY.hex()}") == KEY
    with pytest.raises(Invalid, match="failed with 3: no vault"):
        key_from_command("echo no vault >&2; exit 3")
    with pytest.raises(Invalid, match="64 hexadecimal digits"):
        key_from_command("echo 1234")


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    with pytest.raises(Invalid, match="cannot be read"):
        key_from_file(path)
    path.write_bytes(os.urandom(32))
    with pytest.raises(Invalid):
        key_from_file(path)


@pytest.mark.parametrize("mode, warns", [(0o600, False), (0o400, False), (0o640, True), (0o644, True)])
def test_a_key_that_other_users_can_read_is_warned_about(tmp_path: Path, mode: int, warns: bool) -> None:
    path = tmp_path / "key"
    path.write_text("ab" * 32)
    path.chmod(mode)
    with capture_logs() as lines:
        key_from_file(path)
    assert [f"chmod 600 {path}" in line["warning"] for line in lines] == [True] * warns
