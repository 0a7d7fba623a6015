"""Calls: one connection for many, errors as one tree, and nothing sent twice that must not be."""

import socket

import pytest

from roost.client.errors import ApiError, ClientError, Unreachable
from roost.client.namespace import path_of
from roost.client.transport import Transport
from tests.client.wires import answer, wire


def test_calls_share_a_connection() -> None:
    with wire([answer(b"1"), answer(b"2")]) as server:
        transport = Transport(server.url, "secret")
        assert [transport.call("GET", "/a").body, transport.call("POST", "/b", None, b"{}").body] == [b"1", b"2"]
    assert server.requests[0].startswith(b"GET /a HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in server.requests[1]


def test_reading_is_tried_again_when_the_kept_connection_was_dropped() -> None:
    with wire([answer(b"1")], [answer(b"2")]) as server:
        transport = Transport(server.url, "")
        transport.call("GET", "/a")
        assert transport.call("GET", "/b").body == b"2"
    assert len(server.requests) == 2


def test_writing_is_not_sent_twice() -> None:
    with wire([answer(b"1"), b""], [answer(b"2")]) as server:
        transport = Transport(server.url, "")
        transport.call("GET", "/a")
        with pytest.raises(Unreachable):
            transport.call("POST", "/b", None, b"{}")
    assert len(server.requests) == 2


def test_after_a_server_that_broke_off_the_next_one_is_asked() -> None:
    with wire([b""], [answer(b"1")]) as broken, wire([answer(b"2")]) as sound:
        transport = Transport(f"{broken.url},{sound.url}", "")
        with pytest.raises(Unreachable):
            transport.call("POST", "/a", None, b"{}")
        assert transport.call("POST", "/b", None, b"{}").body == b"2"
    assert len(broken.requests) == len(sound.requests) == 1


def test_a_kept_connection_that_is_old_is_not_used_for_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.client.transport.IDLE_REUSE_S", 0.0)
    with wire([answer(b"1")], [answer(b"2")]) as server:
        transport = Transport(server.url, "")
        transport.call("GET", "/a")
        assert transport.call("POST", "/b", None, b"{}").body == b"2"


def test_the_servers_no_is_reported_with_its_path_and_hint() -> None:
    body = b'{"code":"invalid","message":"this must be 1 to 5","path":"count","hint":"make it smaller"}'
    with wire([answer(body, "422 Unprocessable Entity")]) as server, pytest.raises(ApiError) as caught:
        Transport(server.url, "").call("GET", "/a")
    error = caught.value
    assert (error.status, error.code, error.path, error.hint) == (422, "invalid", "count", "make it smaller")
    assert str(error) == "count: this must be 1 to 5"


@pytest.mark.parametrize("body", [b"<html>Bad Gateway</html>", b"", b"[1]", b"\xff\xfe"])
def test_an_answer_that_is_not_ours_is_still_an_error(body: bytes) -> None:
    with wire([answer(body, "502 Bad Gateway")]) as server, pytest.raises(ApiError) as caught:
        Transport(server.url, "").call("GET", "/a")
    assert (caught.value.status, caught.value.code) == (502, "http_502")
    assert caught.value.message


def test_a_missing_server_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unreachable, match=f"no server at http://127.0.0.1:{port}") as caught:
        Transport(f"http://127.0.0.1:{port}", "").call("GET", "/a")
    assert "roost up" in caught.value.hint
    assert isinstance(caught.value, ClientError)


def test_an_answer_that_is_cut_off_is_unreachable() -> None:
    with wire([b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"]) as server, pytest.raises(Unreachable):
        Transport(server.url, "").call("GET", "/a")


def test_queries_leave_out_omitted_parameters() -> None:
    with wire([answer(b"1")]) as server:
        query = {"state": "", "index": 0, "after": None, "same_ok": True, "kind": ("a", "b")}
        Transport(f"{server.url}/base/", "").call("GET", "/a", query)
    assert server.requests[0].startswith(b"GET /base/a?index=0&same_ok=true&kind=a&kind=b HTTP/1.1\r\n")


def test_names_cannot_leave_their_place_in_a_path() -> None:
    assert path_of("/v1/nodes/{}", "../x?y#z%") == "/v1/nodes/..%2Fx%3Fy%23z%25"
