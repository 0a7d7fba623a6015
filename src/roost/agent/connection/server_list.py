"""The addresses of servers, and which to try next. Only one leads; the others name it."""

from collections.abc import Iterable

SILENT_TURNS = 30  # tries elsewhere before one that was silent is tried again: some seconds
SERVERS_MAX = 16  # remembered; three are enough


class ServerList:
    """The addresses of servers: those given by an operator, those that servers tell of."""

    def __init__(self, given: str) -> None:
        self._given = tuple(part.strip() for part in given.split(",") if part.strip())
        self._announced: tuple[str, ...] = ()
        self._leader = ""  # as another server has named it
        self._silent = ""  # the server that stopped answering; others may still name it as the leader
        self._silent_until = 0
        self._turn = 0

    @property
    def knows_leader(self) -> bool:
        return bool(self._leader)

    def all(self, joined: Iterable[str]) -> tuple[str, ...]:
        """Everything that is known; `joined`: what the server sent at enrolment."""
        fixed = self._given or tuple(joined)
        return tuple(dict.fromkeys((*fixed, *self._announced)))[:SERVERS_MAX]

    def next(self, joined: Iterable[str]) -> str:
        """The address to try: the leader if a server has named it, else one after the other."""
        if self._turn >= self._silent_until:
            self._silent = ""
        existing = [name for name in self.all(joined) if name != self._silent] or self.all(joined)
        if self._leader:
            leader, self._leader = self._leader, ""
            return leader
        return existing[self._turn % len(existing)] if existing else ""

    def welcomed(self, address: str, report: Iterable[str]) -> None:
        """A server has welcomed us, and tells of the others. One that has just begun to lead knows only itself yet."""
        self._announced = tuple(dict.fromkeys((*report, *self._announced)))[:SERVERS_MAX]
        self._silent = ""
        existing = (*self._given, *self._announced)
        self._turn = existing.index(address) if address in existing else 0

    def refused(self, leader: str = "") -> None:
        """The server that was tried is away or does not lead. It may name the leader."""
        self._leader = leader if leader != self._silent else ""
        self._turn += 1

    def silent(self, address: str) -> None:
        """A server has stopped answering: the others first, whatever they say of it."""
        self._silent, self._silent_until = address, self._turn + SILENT_TURNS
