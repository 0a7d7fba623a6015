"""The connection's state machine: which server, when to send, when to give up, without a network or a clock."""

from collections.abc import Sequence

from roost import __version__
from roost.agent.actor import Actor, Lease
from roost.agent.connection.machine import (
    BEATS_PER_LEASE,
    FIND_LEADER_EVERY_MS,
    FLUSH_DELAY_MS,
    NAME_TAKEN_MS,
    NAME_TAKEN_TRIES,
    QUIET_TRIES,
    REFUSED_MS,
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    SILENCE_SHARE,
    SILENCE_SHARE_MANY,
    USAGE_MS,
    WELCOME_MS_MAX,
    WELCOME_MS_MAX_MANY,
    CloseStream,
    Connected,
    Effect,
    FindLeader,
    LearnServers,
    LinkMachine,
    LogLine,
    OpenStream,
    Phase,
    ReadCertificate,
    SendFrame,
    StreamEnd,
)
from roost.model.protocol import PROTOCOL, Answer, Beat, Hello, Run, Usage, Welcome
from roost.model.records.node import Facts
from roost.ports.driver import Ended

LEASE_MS = 4_000
SESSION = 9


def machine_of(*servers: str) -> LinkMachine:
    """A machine that has just read its certificate and is opening its first stream."""
    machine = LinkMachine(Actor("n1", "machine", Facts({"cpu": 4_000})), "", lambda: 1.0)
    assert machine.tick(0) == [ReadCertificate()]
    assert machine.certified(servers or ("a:1",)) == [OpenStream(servers[0] if servers else "a:1")]
    return machine


def connected(*servers: str, at_ms: int = 0) -> LinkMachine:
    """A machine in a session, whose hello was sent at this time."""
    machine = machine_of(*servers)
    machine.opened("", at_ms)
    machine.sent()
    machine.received(Welcome(SESSION, at_ms, LEASE_MS, 1), at_ms + 5)
    return machine


def beat_of(effects: Sequence[Effect]) -> Beat:
    """The only effect is a heartbeat, which is then sent."""
    (effect,) = effects
    assert isinstance(effect, SendFrame) and isinstance(effect.frame, Beat)
    return effect.frame


def beat(machine: LinkMachine, now: int) -> Beat:
    found = beat_of(machine.tick(now))
    machine.sent()
    return found


# --- opening ----------------------------------------------------------------------------------------------------------


def test_a_stream_begins_with_hello_and_the_welcome_begins_a_session() -> None:
    machine = machine_of("a:1", "b:1")
    (effect,) = machine.opened("10.0.0.7", 100)
    assert isinstance(effect, SendFrame) and isinstance(effect.frame, Hello)
    assert (effect.frame.sent_ms, effect.frame.facts.address) == (100, "10.0.0.7")
    machine.sent()
    assert machine.received(Welcome(SESSION, 100, LEASE_MS, 1), 130, ("a:1", "c:1")) == [
        LogLine("connected to a:1 as n1"),
        Connected(),
        Lease(100 + LEASE_MS),
        LearnServers(("a:1", "c:1")),
    ]
    assert machine.phase is Phase.CONNECTED
    assert machine.known_servers() == ("a:1", "b:1", "c:1")
    assert machine.next_ms() == 100 + LEASE_MS // BEATS_PER_LEASE
    assert machine.tick(130) == []


def test_a_lease_counts_from_our_own_sending_not_from_the_answer() -> None:
    machine = connected(at_ms=0)
    sent = beat(machine, 1_000)
    assert machine.received(Answer(SESSION, sent.sent_ms), 1_900) == [Lease(1_000 + LEASE_MS)]
    assert machine.received(Answer(SESSION, 0), 2_000) == []


def test_a_hello_without_an_answer_is_given_up_sooner_where_there_are_other_servers() -> None:
    alone, among = machine_of("a:1"), machine_of("a:1", "b:1")
    for machine, longest_ms in ((alone, WELCOME_MS_MAX), (among, WELCOME_MS_MAX_MANY)):
        machine.opened("", 0)
        assert machine.next_ms() == longest_ms
        assert machine.tick(longest_ms - 1) == []
        assert machine.tick(longest_ms) == [CloseStream(), LogLine("not connected to a:1: no answer to our hello")]
        assert machine.tick(longest_ms + RETRY_MS_MIN) == [ReadCertificate()]
    assert alone.certified(("a:1",)) == [OpenStream("a:1")]
    assert among.certified(("a:1", "b:1")) == [OpenStream("b:1")]


def test_anything_but_a_welcome_is_no_welcome() -> None:
    machine = machine_of()
    machine.opened("", 0)
    line = LogLine("not connected to a:1: the server did not welcome us")
    assert machine.received(Answer(SESSION), 1) == [CloseStream(), line]
    machine = machine_of()
    machine.opened("", 0)
    assert machine.closed(StreamEnd.CLOSED, "", 1) == [line]


def test_a_server_that_does_not_lead_names_the_leader() -> None:
    machine = machine_of("a:1", "b:1", "c:1")
    machine.opened("", 0)
    machine.closed(StreamEnd.BROKEN, "this server does not lead", 10, leader="c:1")
    assert machine.tick(10 + RETRY_MS_MIN) == [ReadCertificate()]
    assert machine.certified(("a:1", "b:1", "c:1")) == [OpenStream("c:1")]


def test_each_failure_waits_twice_as_long_up_to_a_limit_and_is_logged_once() -> None:
    machine = machine_of()
    now, pauses, lines = 0, [], 0
    for _ in range(6):
        lines += len(machine.closed(StreamEnd.BROKEN, "connection refused", now))
        next_ms = machine.next_ms()
        assert next_ms is not None
        pauses.append(next_ms - now)
        now = next_ms
        assert machine.tick(now) == [ReadCertificate()]
        machine.certified(("a:1",))
    assert pauses == [RETRY_MS_MIN, 2 * RETRY_MS_MIN, 4 * RETRY_MS_MIN, RETRY_MS_MAX, RETRY_MS_MAX, RETRY_MS_MAX]
    assert lines == 1


def test_half_of_a_pause_is_chance() -> None:
    machine = LinkMachine(Actor("n1", "machine", Facts({})), "a:1", lambda: 0.0)
    machine.tick(0)
    machine.certified(())
    machine.closed(StreamEnd.BROKEN, "", 0)
    assert machine.next_ms() == RETRY_MS_MIN // 2


def test_a_refused_agent_waits_longer_and_a_taken_name_may_become_free() -> None:
    machine = machine_of()
    assert machine.closed(StreamEnd.BAD_CERTIFICATE, "revoked", 0) == [
        LogLine("the server does not take our certificate: revoked")
    ]
    assert machine.next_ms() == REFUSED_MS
    machine = machine_of()
    machine.closed(StreamEnd.NAME_TAKEN, "taken", 0)
    assert machine.next_ms() == NAME_TAKEN_MS
    machine.tries = NAME_TAKEN_TRIES
    machine.tick(NAME_TAKEN_MS)
    machine.certified(("a:1",))
    machine.closed(StreamEnd.NAME_TAKEN, "taken", NAME_TAKEN_MS)
    assert machine.next_ms() == NAME_TAKEN_MS + REFUSED_MS


def test_a_missing_certificate_is_logged_only_when_it_does_not_come_soon() -> None:
    machine = LinkMachine(Actor("n1", "machine", Facts({})), "", lambda: 1.0)
    now, lines = 0, []
    for _ in range(QUIET_TRIES + 2):
        assert machine.tick(now) == [ReadCertificate()]
        lines.append(len(machine.uncertified("not there", now, exists=False)))
        now = machine.next_ms() or 0
    assert lines == [0] * QUIET_TRIES + [1, 0]
    machine.tick(now)
    assert machine.uncertified("expired", now, exists=True) == [LogLine("expired")]
    assert machine.next_ms() == now + REFUSED_MS


# --- heartbeats -------------------------------------------------------------------------------------------------------


def test_four_heartbeats_per_lease_and_one_frame_at_a_time() -> None:
    machine = connected()
    assert machine.tick(999) == []
    beat_of(machine.tick(1_000))
    assert machine.tick(2_000) == [], "the last frame is still being written"
    machine.sent()
    beat(machine, 2_000)
    machine.received(Answer(SESSION, 2_000), 2_010)
    assert machine.next_ms() == 3_000


def test_a_silent_server_is_left_and_sooner_where_there_are_others() -> None:
    for servers, share in ((("a:1",), SILENCE_SHARE), (("a:1", "b:1"), SILENCE_SHARE_MANY)):
        machine = connected(*servers)
        beat(machine, 1_000)
        machine.received(Answer(SESSION, 1_000), 1_000)
        beat(machine, 2_000)
        silent_ms = 1_000 + int(LEASE_MS * share)
        line = LogLine("not connected to a:1: the server has stopped answering")
        assert machine.tick(max(silent_ms, 2_001)) == [CloseStream(), line]
        assert machine.phase is Phase.WAITING


def test_an_answer_to_an_older_heartbeat_is_no_answer_to_the_last() -> None:
    machine = connected()
    beat(machine, 1_000)
    beat(machine, 2_000)
    machine.received(Answer(SESSION, 1_000), 2_001)
    assert CloseStream() in machine.tick(2_001 + int(LEASE_MS * SILENCE_SHARE))


def test_usage_is_asked_for_when_a_heartbeat_is_due_and_not_each_time() -> None:
    machine = connected()
    assert not machine.is_usage_due(999)
    assert machine.is_usage_due(1_000)
    usage = Usage(250, 1, 2)
    assert beat_of(machine.tick(1_000, usage)).usage == usage
    machine.sent()
    assert not machine.is_usage_due(2_000)
    assert machine.is_usage_due(1_000 + USAGE_MS)


def test_an_end_is_reported_at_once_and_again_until_it_is_acknowledged() -> None:
    machine = connected()
    actor = machine._actor
    machine.received(Answer(SESSION, 0, 0, 1, 2, orders=(Run(7, "default/w", 0, 1, b""),)), 100)
    actor.started(7, 110, 110)
    actor.ended(Ended("7", "exited", 120, 0), 120)
    assert [item.token for item in beat(machine, 120).reports] == [7]
    assert machine.next_ms() is not None and machine.tick(121) == []
    second = beat(machine, 1_120)
    assert [item.token for item in second.reports] == [7], "a regular heartbeat repeats it"
    machine.received(Answer(SESSION, 1_120, acknowledged=second.sequence), 1_130)
    assert beat(machine, 2_120).reports == ()


def test_reports_wait_for_others_only_while_there_are_many() -> None:
    machine = connected()
    actor = machine._actor
    orders = tuple(Run(token, "default/w", token, 1, b"") for token in (1, 2, 3))
    machine.received(Answer(SESSION, 0, 0, 1, 2, orders=orders), 100)
    for token, at_ms, sent_ms in ((1, 110, 110), (2, 120, 120 + FLUSH_DELAY_MS), (3, 200, 200)):
        actor.ended(Ended(str(token), "exited", at_ms, 0), at_ms)
        assert machine.next_ms() == sent_ms
        assert [item.token for item in beat(machine, sent_ms).reports] == [token]


# --- another leader, and the end --------------------------------------------------------------------------------------


def test_while_our_server_is_unsure_the_others_are_asked_once_a_second() -> None:
    machine = connected("a:1", "b:1", "c:1")
    assert machine.received(Answer(SESSION), 100, unsure=True) == [FindLeader(("b:1", "c:1"))]
    assert machine.received(Answer(SESSION), 150, unsure=True) == [], "being asked"
    assert machine.leader_found("", 200) == []
    assert machine.next_ms() == 1_000
    assert machine.tick(200 + FIND_LEADER_EVERY_MS)[0] == FindLeader(("b:1", "c:1"))
    assert machine.leader_found("c:1", 1_300) == [
        CloseStream(),
        LogLine("not connected to a:1: the server at c:1 leads by now"),
    ]
    machine.tick(1_300 + RETRY_MS_MIN)
    assert machine.certified(("a:1", "b:1", "c:1")) == [OpenStream("c:1")]


def test_goodbye_is_the_last_heartbeat_and_the_server_closes_the_stream() -> None:
    machine = connected()
    machine.goodbye()
    (effect,) = machine.tick(50)
    assert isinstance(effect, SendFrame) and isinstance(effect.frame, Beat)
    assert effect.last and effect.frame.leaving
    machine.sent()
    assert machine.tick(60_000) == [] and machine.next_ms() is None
    assert machine.closed(StreamEnd.CLOSED, "", 60_001) == []
    assert machine.phase is Phase.OVER


def test_goodbye_without_a_stream_is_over_at_once() -> None:
    machine = connected()
    machine.closed(StreamEnd.BROKEN, "", 10)
    machine.goodbye()
    assert machine.phase is Phase.OVER
    assert machine.tick(60_000) == [] and machine.next_ms() is None


def test_a_lease_that_changes_holds_from_the_answer_on() -> None:
    machine = connected(at_ms=1_000)
    assert beat_of(machine.tick(2_000)).sent_ms == 2_000
    machine.sent()
    longer = machine.received(Answer(SESSION, 2_000, lease_ms=12_000), 2_010)
    assert longer == [Lease(14_000)]
    assert machine.next_ms() == 2_000 + 12_000 // BEATS_PER_LEASE
    assert beat_of(machine.tick(5_000)).sent_ms == 5_000
    machine.sent()
    shorter = machine.received(Answer(SESSION, 5_000, lease_ms=2_000), 5_010)
    assert shorter == []  # the longer lease of the beat before holds
    assert machine.next_ms() == 5_000 + 2_000 // BEATS_PER_LEASE


def test_a_server_of_another_protocol_is_refused_with_both_versions() -> None:
    machine = machine_of()
    machine.opened("", 0)
    machine.sent()
    effects = machine.received(Welcome(SESSION, 0, LEASE_MS, 1, protocol=7, software="9.9.9"), 5)
    text = (
        "this agent does not understand the server: the server (roost 9.9.9) speaks agent protocol 7, "
        f"this agent (roost {__version__}) speaks {PROTOCOL}; install the same release on both"
    )
    assert effects == [CloseStream(), LogLine(text)]
    assert (machine.phase, machine.next_ms()) == (Phase.WAITING, 5 + REFUSED_MS)


def test_a_frame_that_is_not_understood_ends_the_stream_and_nothing_of_it_is_followed() -> None:
    machine = connected()
    close, line = machine.received(None, 10)
    assert close == CloseStream() and isinstance(line, LogLine) and "update this agent" in line.text
    assert machine.next_ms() == 10 + REFUSED_MS
