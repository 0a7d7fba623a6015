"""Webhooks reach what the allow-list names, and nothing that trusts a caller because of its address."""

import asyncio
import socket
from ipaddress import ip_address

import pytest

from roost.model.errors import Invalid
from roost.server.webhooks.destinations import Destinations
from roost.server.webhooks.http import Poster


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3", "172.16.0.1", "192.168.1.1", "fd00::1", "100.64.0.1", "127.0.0.1", "::1", "169.254.169.254",
        "fe80::1", "0.0.0.0", "224.0.0.1", "::ffff:10.1.2.3", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:0a01:0203::1",
        "fd00:ec2::254", "168.63.129.16", "240.0.0.1",
    ],
)  # fmt: skip
def test_only_public_addresses_are_allowed_by_default(address: str) -> None:
    assert Destinations().refusal(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_public_addresses_are_allowed_by_default(address: str) -> None:
    assert Destinations().refusal(ip_address(address)) == ""


def test_the_list_is_all_that_is_allowed() -> None:
    some = Destinations(["10.1.2.0/24", "fd00:1::/32"])
    for address in ("10.1.2.3", "fd00:1::7"):
        assert some.refusal(ip_address(address)) == ""
    for address in ("10.1.3.3", "93.184.216.34"):
        assert some.refusal(ip_address(address))
    assert "--webhook-allow" in some.refusal(ip_address("10.1.3.3"))


def test_metadata_services_and_link_local_addresses_are_never_allowed() -> None:
    every = Destinations(["0.0.0.0/0", "::/0"])
    for address in ("169.254.169.254", "fe80::1", "100.100.100.200", "0.0.0.0"):
        assert every.refusal(ip_address(address))


def test_the_servers_own_addresses_need_an_entry_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the server's own machine" in Destinations(["0.0.0.0/0"]).refusal(ip_address("127.0.0.1"))
    assert Destinations(["127.0.0.0/8"]).refusal(ip_address("127.0.0.1")) == ""
    assert Destinations(["127.0.0.1/32"]).refusal(ip_address("127.0.0.1")) == ""
    monkeypatch.setattr("roost.server.webhooks.destinations._is_own", lambda address: True)
    assert "the server's own machine" in Destinations(["public", "10.0.0.0/8"]).refusal(ip_address("10.1.2.3"))
    assert Destinations(["10.1.2.3/32"]).refusal(ip_address("10.1.2.3")) == ""


@pytest.mark.parametrize("entry", ["", "10.0.0.1/8", "10.0.0.0/40", "example.com", "Public"])
def test_an_entry_that_is_no_network_is_refused(entry: str) -> None:
    with pytest.raises(Invalid) as caught:
        Destinations([entry])
    assert caught.value.path == "webhook_allow"


async def test_a_name_that_resolves_to_a_private_address_is_refused_when_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inward = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: inward)
    poster = Poster(Destinations())
    outcome = await poster.post("http://rebound.example/", {}, b"{}")
    poster.close()
    assert not outcome.ok and "10.1.2.3 is in no network" in outcome.message


async def test_nothing_of_an_answer_is_quoted() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR planted-4711 from another service\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    poster = Poster(Destinations(["127.0.0.1/32"]))
    async with server:
        outcome = await poster.post(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", {}, b"{}")
    poster.close()
    assert not outcome.ok and "planted" not in outcome.message and "HTTP" in outcome.message
