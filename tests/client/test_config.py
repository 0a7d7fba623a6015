"""Where a client finds its server: three places, in order, each with a clear error."""

import os
from pathlib import Path

import pytest

from roost.client.config import Config, find_config, read_config, write_config
from roost.client.errors import NotConfigured


@pytest.fixture
def named(tmp_path: Path) -> Path:
    write_config(tmp_path / "named.toml", Config("http://named:1", "token-named"))
    return tmp_path / "named.toml"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A home with a configuration of the user's own."""
    (tmp_path / "config" / "roost").mkdir(parents=True)
    write_config(tmp_path / "config" / "roost" / "client.toml", Config("http://own:3", "token-own"))
    return tmp_path / "config"


def test_named_file_goes_before_the_users_own(named: Path, own: Path) -> None:
    environ = {"ROOST_CONFIG": str(named), "XDG_CONFIG_HOME": str(own)}
    assert find_config(environ) == Config("http://named:1", "token-named")


def test_token_in_the_environment_replaces_that_of_a_file(named: Path, own: Path) -> None:
    """A user who sets it to the output of `roost tokens create` must not go on with the rights of the file."""
    own_login = own / "roost" / "client.toml"
    own_login.write_text('url = "http://own:3"\n[login]\nissuer = "http://nowhere:4"\n')
    environ = {"ROOST_TOKEN": "token-env", "XDG_CONFIG_HOME": str(own)}
    assert find_config(environ) == Config("http://own:3", "token-env")
    assert find_config({**environ, "ROOST_CONFIG": str(named)}) == Config("http://named:1", "token-env")


def test_url_in_the_environment_and_another_one_in_a_named_file_are_an_error(named: Path) -> None:
    environ = {"ROOST_CONFIG": str(named), "ROOST_URL": "http://named:1/"}
    assert find_config(environ).url == "http://named:1"
    with pytest.raises(NotConfigured, match=r"ROOST_URL is http://env:2, and .*named.toml .* has http://named:1"):
        find_config({**environ, "ROOST_URL": "http://env:2"})


def test_the_environment_goes_before_the_users_own_file(own: Path) -> None:
    environ = {"ROOST_URL": "http://env:2/", "ROOST_TOKEN": "token-env", "XDG_CONFIG_HOME": str(own)}
    assert find_config(environ) == Config("http://env:2", "token-env")


def test_the_users_own_file_comes_last(own: Path) -> None:
    assert find_config({"XDG_CONFIG_HOME": str(own)}) == Config("http://own:3", "token-own")


def test_a_server_of_this_machine_in_its_default_directory_is_found(tmp_path: Path, own: Path) -> None:
    (tmp_path / "share" / "roost").mkdir(parents=True)
    write_config(tmp_path / "share" / "roost" / "client.toml", Config("http://here:4", "token-here"))
    environ = {"HOME": str(tmp_path / "empty"), "XDG_DATA_HOME": str(tmp_path / "share")}
    assert find_config(environ) == Config("http://here:4", "token-here")
    assert find_config({**environ, "XDG_CONFIG_HOME": str(own)}) == Config("http://own:3", "token-own")


def test_without_xdg_it_is_below_the_home_directory(own: Path, tmp_path: Path) -> None:
    os.rename(own, tmp_path / ".config")
    assert find_config({"HOME": str(tmp_path)}).url == "http://own:3"


def test_nothing_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        NotConfigured, match="no server configured: start one with `roost up`.*export ROOST_CONFIG=.*ROOST_URL"
    ):
        find_config({"HOME": str(tmp_path)})


def test_a_named_file_that_is_not_there_is_an_error_and_not_skipped(tmp_path: Path, own: Path) -> None:
    with pytest.raises(NotConfigured, match="is not there"):
        find_config({"ROOST_CONFIG": str(tmp_path / "no.toml"), "XDG_CONFIG_HOME": str(own)})


@pytest.mark.parametrize("text", ["url = ", "[server]\nurl = 'x'", "url = 3", "url = 'localhost:8420'", "\xff"])
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "client.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(NotConfigured, match="client.toml"):
        read_config(path)


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(NotConfigured, match="ROOST_URL says 'localhost'"):
        find_config({"ROOST_URL": "localhost"})


def test_a_written_file_is_read_back_and_only_for_its_owner(tmp_path: Path) -> None:
    config = Config("http://127.0.0.1:8420", 'a"b\\c\td')
    write_config(tmp_path / "client.toml", config)
    assert read_config(tmp_path / "client.toml") == config
    assert (tmp_path / "client.toml").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["client.toml"]
