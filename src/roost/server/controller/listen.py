"""Where controllers are listened to: beside the API, on a port of its own, encrypted as the API is."""

import socket
from dataclasses import replace

from roost.server.config import ServerConfig
from roost.server.observability import logging
from roost.server.pki.tls import advertised

PORT_MAX = 65_535
PORTS_ON = 2  # from the API's port: the one between them is the agents'

log = logging.logger("controller")


def choose_port(config: ServerConfig, api_port: int) -> ServerConfig:
    """The same settings with a free port. A port that was not configured must not keep a server from starting."""
    host, wanted = config.controller_listen or (config.host, 0)
    if not config.controllers or wanted:
        return config
    usual = api_port + PORTS_ON if config.port and config.controller_listen is None else 0
    for port in (usual, 0):
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port if port <= PORT_MAX else 0))
                chosen = int(probe.getsockname()[1])
        except OSError:
            continue
        if usual and chosen != usual:
            log.warning("the usual port for controllers is in use; another one is taken", usual=usual, taken=chosen)
        return replace(config, controller_listen=(host, chosen))
    return replace(config, controller_listen=(host, usual))  # gRPC says what is wrong with it


def controller_address(config: ServerConfig) -> str:
    """Where controllers connect, as HOST:PORT; empty: nowhere."""
    if not config.controllers or config.controller_listen is None:
        return ""
    listen, port = config.controller_listen
    host = advertised(listen, config.advertise)[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
