"""Requests and answers: "unavailable" means that nothing was done; a request that is not idempotent happens once."""

from collections.abc import Callable
from typing import NamedTuple

from roost.model.errors import NoService, RoostError
from roost.model.events import Event, Request, inner
from roost.server.engine.machine import Act
from roost.sim.world.world import Wrong


class EffectiveRequests(NamedTuple):
    """The requests that one commit carries out, each with the client's wish if it is not idempotent."""

    server: tuple[str, int]  # its name and which life
    wishes: dict[int, int | None]


class RequestCheckers:
    def __init__(self) -> None:
        self._wishes: list[int] = []  # how often each was carried out
        self._events: dict[int, tuple[Event, int]] = {}  # by id; the event is kept, so that its id stays its own
        self._durable: set[tuple[str, int, int]] = set()  # server, life, request; only ever asked for members
        self._denied: set[tuple[str, int, int]] = set()  # answered with "nothing was done"

    def not_idempotent(self, make: Callable[[int], Event]) -> Callable[[int], Event]:
        """The same requests, known to be one wish of one client, however often the client sends them."""
        wish = len(self._wishes)
        self._wishes.append(0)

        def marked(request: int) -> Event:
            event = make(request)
            self._events[id(event)] = (event, wish)
            return event

        return marked

    def effective(self, server: str, life: int, act: Act) -> EffectiveRequests:
        refused = {request for request, value in act.done.replies if isinstance(value, RoostError)}
        events = [event for event in map(inner, act.batch) if isinstance(event, Request)]
        wishes = {event.request: self._events.get(id(event), (event, None))[1] for event in events}
        kept = {request: wish for request, wish in wishes.items() if request not in refused}
        return EffectiveRequests((server, life), kept)

    def committed(self, done: EffectiveRequests) -> None:
        requests = {(*done.server, request) for request in done.wishes}
        if late := requests & self._denied:
            raise Wrong(f"{min(late)} was answered that nothing was done, and was carried out later")
        self._durable |= requests
        for wish in done.wishes.values():
            if wish is not None:
                self._wishes[wish] += 1
                if self._wishes[wish] > 1:
                    raise Wrong("a request that is not idempotent was carried out twice")

    def answered(self, server: str, life: int, request: int, value: object) -> None:
        if isinstance(value, NoService) and value.code == NoService.code:
            if (server, life, request) in self._durable:
                raise Wrong(f"{server} answered that nothing was done, and it is on the disk: {value}")
            self._denied.add((server, life, request))
