"""Connections: strangers make room, and no principal has all of them."""

import pytest

from roost.model.errors import NoService
from roost.server.auth.principal import Access, Principal
from roost.server.http import connections
from roost.server.http.connections import Connections

VIEWER = Principal("viewer", "", Access({"*": "viewer"}))
ADMIN = Principal("admin", "", Access({"*": "admin"}))


class Line:
    """A connection that remembers why it was cut off."""

    def __init__(self) -> None:
        self.why = ""

    def cut_off(self, why: str) -> None:
        self.why = why


def opened(found: Connections, count: int, address: str = "10.0.0.1") -> list[Line]:
    lines = [Line() for _ in range(count)]
    for line in lines:
        found.open(line, address)
    return lines


def test_the_oldest_stranger_goes_when_there_are_too_many_connections() -> None:
    found = Connections(4)
    known, *strangers = opened(found, 3)
    found.admit(known, VIEWER)
    (new,) = opened(found, 1, "10.0.0.2")
    assert [bool(line.why) for line in (known, *strangers, new)] == [False, True, False, False]
    found.admit(new, ADMIN)
    assert not new.why


def test_strangers_of_one_address_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGERS_OF_ADDRESS_MAX", 2)
    found = Connections(100)
    first, second, third = opened(found, 3)
    assert (first.why, second.why, bool(third.why)) == ("", "", True)
    found.close(third)
    found.admit(first, VIEWER)  # one with a token does not count
    assert not opened(found, 1)[0].why
    assert not opened(found, 1, "10.0.0.2")[0].why


def test_connections_of_one_principal_are_bounded() -> None:
    found = Connections(8)
    lines = opened(found, 3)
    found.admit(lines[0], VIEWER)
    found.admit(lines[1], VIEWER)
    found.admit(lines[1], VIEWER)  # another request on it
    with pytest.raises(NoService):
        found.admit(lines[2], VIEWER)
    found.admit(lines[2], ADMIN)
    found.close(lines[0])
    (new,) = opened(found, 1)
    found.admit(new, VIEWER)
