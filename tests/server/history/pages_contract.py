"""What every shared place of a history promises. A test inherits from PagesContract and has the fixture `opener`."""

from collections.abc import Callable

import pytest

from roost.ports.history import HistoryPages, PagesMoved, StoredPage

#: Another server's view of one place. `leads` is called before a server appends with a new epoch.
Opener = Callable[[], HistoryPages]


def pages(first: int, *contents: bytes) -> list[StoredPage]:
    return [StoredPage(number, content) for number, content in enumerate(contents, start=first)]


class PagesContract:
    @pytest.fixture
    def opener(self) -> Opener:
        raise NotImplementedError

    def leads(self, place: HistoryPages) -> int:
        """Another lead begins; its epoch."""
        raise NotImplementedError

    def test_every_server_reads_what_the_leader_appended(self, opener: Opener) -> None:
        leader, standby = opener(), opener()
        found = standby.read(0, 1_000)
        assert found == [], found
        epoch = self.leads(leader)
        assert leader.append(epoch, pages(1, b"one", b"")) is None
        assert leader.append(epoch, pages(3, b"three")) is None
        assert standby.read(0, 1_000) == leader.read(0, 1_000) == pages(1, b"one", b"", b"three")
        assert standby.read(2, 1_000) == pages(3, b"three")
        assert standby.read(3, 1_000) == []
        leader.append(epoch, pages(4, b"four"))
        assert standby.read(3, 1_000) == pages(4, b"four"), "it has read others of that segment before"

    def test_pages_are_read_in_pieces(self, opener: Opener) -> None:
        leader = opener()
        epoch = self.leads(leader)
        everything = pages(1, *(bytes([number]) * 400 for number in range(20)))
        for page in everything:
            assert leader.append(epoch, [page]) is None
        found: list[StoredPage] = []
        while piece := opener().read(len(found), 1_000):
            assert isinstance(piece, list)
            found += piece
        assert found == everything

    def test_no_page_is_written_twice_and_none_is_left_out(self, opener: Opener) -> None:
        leader = opener()
        epoch = self.leads(leader)
        assert leader.append(epoch, pages(2, b"x")) == PagesMoved(0)
        leader.append(epoch, pages(1, b"one", b"two"))
        assert leader.append(epoch, pages(2, b"other")) == PagesMoved(2)
        assert leader.append(epoch, pages(4, b"four")) == PagesMoved(2)
        assert leader.read(0, 1_000) == pages(1, b"one", b"two")

    def test_a_new_leader_goes_on_after_the_last_page(self, opener: Opener) -> None:
        first, second = opener(), opener()
        epoch = self.leads(first)
        first.append(epoch, pages(1, b"one", b"two"))
        epoch = self.leads(second)
        assert second.append(epoch, pages(2, b"other")) == PagesMoved(2)
        assert second.append(epoch, pages(3, b"three")) is None
        assert opener().read(0, 1_000) == pages(1, b"one", b"two", b"three")

    def test_a_deposed_leader_changes_nothing(self, opener: Opener) -> None:
        first, second = opener(), opener()
        old = self.leads(first)
        first.append(old, pages(1, b"one"))
        new = self.leads(second)
        second.append(new, pages(2, b"two"))
        first.append(old, pages(2, b"false", b"false", b"false"))
        assert opener().read(0, 1_000) == pages(1, b"one", b"two")
        assert second.append(new, pages(3, b"three")) is None
        first.append(old, pages(5, b"false"))
        assert second.append(new, pages(4, b"four")) is None
        assert opener().read(0, 1_000) == second.read(0, 1_000) == pages(1, b"one", b"two", b"three", b"four")

    def test_what_is_forgotten_is_not_read(self, opener: Opener) -> None:
        leader = opener()
        epoch = self.leads(leader)
        everything = pages(1, *(bytes([number]) * 400 for number in range(20)))
        for page in everything:
            leader.append(epoch, [page])
        assert leader.forget(epoch, 15) is None
        found = opener().read(0, 1 << 20)
        assert isinstance(found, list)
        assert 1 < found[0].number <= 15 and found == everything[found[0].number - 1 :]
        assert leader.append(epoch, pages(21, b"more")) is None
        again = opener()
        assert again.append(self.leads(again), pages(22, b"and more")) is None
        assert opener().read(20, 1_000) == pages(21, b"more", b"and more")
