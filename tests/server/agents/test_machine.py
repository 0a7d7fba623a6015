"""Sessions of agents without I/O: what a beat tells the engine."""

from roost.core.state.outcome import Orders
from roost.model.events import Event, ReportsReceived
from roost.model.protocol import Beat, Drop, Report, Usage
from roost.server.agents.machine import LACKING_MS, REPORTS_MAX, BeatReply, SessionMachine
from roost.server.agents.outbox import Outbox


class Heard:
    lease_ms = 4_000

    def __init__(self) -> None:
        self.events: list[Event] = []

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def heard(self, node: str, session: int, usage: Usage | None) -> bool:
        return True


def test_many_reports_of_one_beat_are_several_events_and_the_last_one_acknowledges_it() -> None:
    engine = Heard()
    machine = SessionMachine(engine)
    session = machine.began("n", Outbox(9))
    reports = tuple(Report(token, "running") for token in range(2 * REPORTS_MAX + 1))
    assert machine.beat(session, Beat(9, 1, 5, 0, reports), 10) is BeatReply.AFTER_COMMIT
    assert engine.events == [
        ReportsReceived("n", 9, 0, reports[:REPORTS_MAX], received_ms=10),
        ReportsReceived("n", 9, 0, reports[REPORTS_MAX : 2 * REPORTS_MAX], received_ms=10),
        ReportsReceived("n", 9, 1, reports[2 * REPORTS_MAX :], received_ms=10),
    ]


def test_orders_that_were_not_written_yet_are_not_sent_again_as_a_whole() -> None:
    engine = Heard()
    machine = SessionMachine(engine)
    session = machine.began("n", Outbox(9))
    session.outbox.welcome(5, 4_000)
    machine.ordered(Orders("n", 9, 0, 1, False, (Drop(1),)))

    def beats(*times: int) -> list[Event]:
        for now in times:
            machine.beat(session, Beat(9, session.sequence + 1, 5, 0), now)
        return engine.events

    assert beats(1, LACKING_MS + 2) == [], "the frame waits for its turn"
    session.outbox.answer()
    assert beats(2_000, 2_000 + LACKING_MS + 1) == [ReportsReceived("n", 9, 4, (), True, 3_001)]
