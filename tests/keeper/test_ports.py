"""Blocks of ports: no two nodes of a machine have the same, and what others listen on is left out."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from roost.keeper import ports
from roost.model import limits


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of our own, so that nodes of other tests on this machine do not matter; and the real ones do not listen."""
    monkeypatch.setattr(ports, "NAME", f"\0roost-test-{os.getpid()}-{{first}}")
    monkeypatch.setattr(ports, "listening", lambda: set())


@contextlib.contextmanager
def claimed(*nodes: int) -> Iterator[list[tuple[int, int]]]:
    ranges = [ports.claim(count) for count in nodes]
    yield [(found.first, found.last) for found in ranges if found]
    for found in ranges:
        if found:
            found.close()


def disjoint(ranges: list[tuple[int, int]]) -> bool:
    return all(left[1] < right[0] for left, right in zip(sorted(ranges), sorted(ranges)[1:], strict=False))


def test_the_range_is_that_of_the_model() -> None:
    assert (ports.FIRST, ports.LAST) == (limits.PORT_ANY_FIRST, limits.PORT_ANY_LAST)
    assert ports.BLOCK >= limits.PORTS_MAX


def test_two_nodes_of_one_machine_have_different_ports() -> None:
    with claimed(1, 1) as found:
        assert found == [(20_000, 21_499), (22_500, 23_749)]


def test_many_nodes_each_have_ports_of_their_own() -> None:
    with claimed(*[64] * 64, 1, 3, 3, 3) as found:
        assert len(found) == 68 and disjoint(found)
        assert all(ports.FIRST <= first and last <= ports.LAST for first, last in found)


def test_where_little_is_left_a_node_gets_less_and_in_the_end_nothing() -> None:
    with claimed(*[1] * 30) as found:
        assert len(found) == 30 and disjoint(found)
        sizes = [last - first + 1 for first, last in found]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] == 12 * ports.BLOCK and sizes[-1] == ports.BLOCK
        with claimed(*[1] * 30):
            assert ports.claim(1) is None


def test_ports_are_free_again_when_their_node_ended() -> None:
    with claimed(1) as first:
        pass
    with claimed(1) as second:
        assert first == second


def test_a_block_in_which_a_process_listens_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "listening", lambda: {20_007})
    with claimed(1) as found:
        assert found == [(21_375, 22_749)]


def test_listening_ports_are_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        assert {server.getsockname()[1], six.getsockname()[1]} <= ports.listening()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert bound.getsockname()[1] not in ports.listening()
    assert ports.listening("/nowhere") == set()
