"""Where controllers are listened to: a port of its own that never keeps a server from starting."""

import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from roost.model.errors import Invalid
from roost.server.config import ServerConfig, check_config
from roost.server.pki.bootstrap import choose_port, controller_address, warn_of_plain_listeners


def config(**fields: Any) -> ServerConfig:
    return ServerConfig(data=Path("."), admin_token="a-token-of-the-tests", **fields)


def test_it_is_the_apis_port_and_two() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    chosen = choose_port(config(port=free - 2), free - 2)
    assert chosen.controller_listen == ("127.0.0.1", free)
    assert controller_address(chosen) == f"127.0.0.1:{free}"


def test_one_that_is_in_use_is_left_for_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = choose_port(config(port=port - 2), port - 2).controller_listen
        assert chosen is not None and chosen[0] == "127.0.0.1" and chosen[1] not in (0, port)


def test_one_that_was_chosen_is_not_changed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = ("127.0.0.1", taken.getsockname()[1])
        assert choose_port(config(controller_listen=wanted), 8420).controller_listen == wanted


def test_any_is_any_and_none_is_none() -> None:
    chosen = choose_port(config(controller_listen=("127.0.0.1", 0)), 8420).controller_listen
    assert chosen is not None and chosen[1] > 0
    closed = choose_port(config(controllers=False), 8420)
    assert closed.controller_listen is None and controller_address(closed) == ""


def test_others_learn_the_name_by_which_they_reach_it() -> None:
    server_config = config(controller_listen=("0.0.0.0", 8422), advertise=("roost.example.org",))
    assert controller_address(server_config) == "roost.example.org:8422"
    assert controller_address(config(controller_listen=("::1", 8422))) == "[::1]:8422"


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        check_config(config(controller_listen=("127.0.0.1", 70_000)))
    assert caught.value.path == "controller_listen"


@pytest.mark.parametrize(
    "fields, listeners",
    [
        ({"host": "0.0.0.0", "tls": "off"}, ["API", "controllers"]),
        ({"controller_listen": ("0.0.0.0", 8422), "tls": "off"}, ["controllers"]),
        ({"host": "0.0.0.0", "controllers": False, "tls": "off"}, ["API"]),
        ({"host": "0.0.0.0"}, []),
        ({"tls": "off"}, []),
    ],
)
def test_a_plain_listener_that_others_can_reach_is_logged(fields: dict[str, Any], listeners: list[str]) -> None:
    with capture_logs() as lines:
        warn_of_plain_listeners(config(**fields))
    assert [line["listener"] for line in lines if line["log_level"] == "warning"] == listeners
