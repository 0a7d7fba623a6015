"""Open connections: those of principals, and those of strangers, which have not shown a token so far.

Strangers are bounded by address, and the oldest of them goes when there is no room for another connection.
"""

from collections import Counter
from typing import Protocol

from roost.server.auth.principal import Principal
from roost.server.auth.shares import Shares

CONNECTION = "roost.connection"  # in the scope of a request
CONNECTIONS_MAX = 4_096  # some 100 KB each when busy; agents have a port of their own
STRANGERS_OF_ADDRESS_MAX = 256  # a proxy has fewer that have never carried a request


class Connection(Protocol):
    def cut_off(self, why: str) -> None: ...


class Connections:
    def __init__(self, most: int = CONNECTIONS_MAX) -> None:
        self._most = most
        self._strangers: dict[Connection, str] = {}  # and their addresses, the oldest first
        self._addresses: Counter[str] = Counter()  # strangers by address
        self._known: dict[Connection, str] = {}  # and their principals
        self._shares = Shares(most, "connections")

    def open(self, connection: Connection, address: str) -> None:
        """A new connection. It, or the oldest stranger, is cut off if there are too many."""
        self._strangers[connection] = address
        self._addresses[address] += 1
        if self._addresses[address] > STRANGERS_OF_ADDRESS_MAX:
            connection.cut_off("there are too many connections without a token from its address")
        elif len(self._strangers) + len(self._known) >= self._most:
            oldest = next(iter(self._strangers))
            self.close(oldest)
            oldest.cut_off("it has shown no token, and there are too many connections")

    def admit(self, connection: Connection, principal: Principal) -> None:
        """A request on it has shown a token. Raises NoService if the principal has too many."""
        before = self._known.get(connection)
        if before == principal.name:
            return
        self._shares.take(principal)
        self.close(connection)
        self._known[connection] = principal.name

    def close(self, connection: Connection) -> None:
        name = self._known.pop(connection, None)
        if name is not None:
            self._shares.give_back(name)
        address = self._strangers.pop(connection, None)
        if address is not None:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
