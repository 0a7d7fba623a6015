"""What is due to an agent, merged."""

from roost.core.state.outcome import Orders
from roost.model.protocol import Answer, Drop, Run
from roost.server.agents.gateway import ORDERS_PER_FRAME, GatewayStream, frames_of
from roost.server.agents.machine import Session
from roost.server.agents.outbox import Outbox


def test_what_gathers_in_an_outbox_is_one_answer() -> None:
    outbox = Outbox(9)
    outbox.order(Orders("n", 9, 0, 1, True, (Run(1, "default/job", 0, 1, b""),)))
    assert outbox.welcome(5, 4_000).generation == 1
    outbox.order(Orders("n", 9, 1, 2, False, (Drop(1),)))
    outbox.order(Orders("n", 9, 2, 3, False, (Drop(2),)))
    outbox.echo(10, 4_000)
    outbox.acknowledge(4)
    assert outbox.answer() == Answer(9, 10, 4, 1, 3, False, (Drop(1), Drop(2)))
    assert outbox.answer() == Answer(9, 0, 4)
    outbox.order(Orders("n", 9, 3, 4, False, (Drop(3),)))
    outbox.order(Orders("n", 9, 4, 5, True, ()))
    outbox.order(Orders("n", 9, 5, 6, False, (Drop(5),)))
    assert outbox.answer() == Answer(9, 0, 4, 4, 6, True, (Drop(5),))


def test_an_answer_carries_the_lease_once_after_it_has_changed() -> None:
    outbox = Outbox(9)
    assert outbox.welcome(5, 4_000).lease_ms == 4_000
    sent = []
    for lease_ms in (4_000, 9_000, 9_000, 4_000):
        outbox.echo(10, lease_ms)
        sent.append(outbox.answer().lease_ms)
    assert sent == [0, 9_000, 0, 4_000]


async def test_what_is_here_when_it_closes_is_still_written() -> None:
    stream = GatewayStream(Session("n", Outbox(9)))
    stream.session.outbox.welcome(5, 4_000)
    stream.session.outbox.acknowledge(3)
    stream.close()
    assert await stream.ready()
    assert stream.session.outbox.answer() == Answer(9, 0, 3)
    assert not await stream.ready()


def test_a_frame_counts_by_its_orders() -> None:
    outbox = Outbox(9)
    assert frames_of(outbox) == 1
    outbox.order(Orders("n", 9, 0, 1, True, tuple(Drop(token) for token in range(3 * ORDERS_PER_FRAME))))
    assert frames_of(outbox) == 4
    outbox.answer()
    assert frames_of(outbox) == 1
