"""Whereabouts: where servers are, and which of them to try next. Only one leads; the others say who it is."""

from collections.abc import Iterable

SILENT_TURNS = 30  # tries elsewhere before one that was silent is tried again: some seconds
SERVERS_MAX = 16  # remembered; three are enough for anybody


class Whereabouts:
    """The addresses of servers: those given by an operator, those that servers tell of."""

    def __init__(self, given: str) -> None:
        self._given = tuple(each.strip() for each in given.split(",") if each.strip())
        self._told: tuple[str, ...] = ()
        self._leader = ""  # whom another server has named
        self._silent = ""  # who has stopped answering; others may not have noticed yet, and name it
        self._silent_until = 0
        self._turn = 0

    @property
    def knows_leader(self) -> bool:
        """Whether somebody has named it since we last tried."""
        return bool(self._leader)

    def all(self, joined: Iterable[str]) -> tuple[str, ...]:
        """Everything that is known; `joined`: what we were told when we joined."""
        fixed = self._given or tuple(joined)
        return tuple(dict.fromkeys((*fixed, *self._told)))[:SERVERS_MAX]

    def next(self, joined: Iterable[str]) -> str:
        """The address to try: the leader if somebody has named it, else one after the other."""
        if self._turn >= self._silent_until:
            self._silent = ""
        known = [each for each in self.all(joined) if each != self._silent] or self.all(joined)
        if self._leader:
            leader, self._leader = self._leader, ""
            return leader
        return known[self._turn % len(known)] if known else ""

    def taken_in(self, address: str, told: Iterable[str]) -> None:
        """A server has welcomed us, and tells of the others. One that has just begun to lead knows only itself yet."""
        self._told = tuple(dict.fromkeys((*told, *self._told)))[:SERVERS_MAX]
        self._silent = ""
        known = (*self._given, *self._told)
        self._turn = known.index(address) if address in known else 0

    def refused(self, leader: str = "") -> None:
        """The one we tried is not there or does not lead. It may know who does."""
        self._leader = leader if leader != self._silent else ""
        self._turn += 1

    def silent(self, address: str) -> None:
        """A server has stopped answering: the others first, whatever they say of it."""
        self._silent, self._silent_until = address, self._turn + SILENT_TURNS
