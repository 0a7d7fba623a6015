"""The directory of a server: the client.toml in it is a convenience, and no condition for serving."""

from pathlib import Path

import pytest

from roost.cli.start.datadir import DataDir
from roost.cli.start.options import ListenAddress


def test_a_server_that_cannot_write_its_client_config_says_so_and_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = DataDir(tmp_path)
    (tmp_path / "ca.pem").touch()
    home.client_config_path.mkdir()  # as good as a full disk: nothing can be written there
    config = home.server_config(ListenAddress("127.0.0.1", 1), ListenAddress("127.0.0.1", 2), admin_token="secret")
    assert home.write_client_config(config, 1) == "http://127.0.0.1:1"
    error = capsys.readouterr().err
    assert f"{home.client_config_path} cannot be written" in error and "ROOST_URL" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.pem", "client.toml", "server.lock"]
