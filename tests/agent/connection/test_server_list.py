"""An agent finds the leader among several servers."""

from roost.agent.connection.server_list import ServerList

JOINED = ("a:1", "b:1", "c:1")


def test_servers_are_tried_one_after_the_other() -> None:
    places = ServerList("")
    tried = []
    for _ in range(4):
        tried.append(places.next(JOINED))
        places.refused()
    assert tried == ["a:1", "b:1", "c:1", "a:1"]


def test_the_server_named_as_the_leader_is_tried_next() -> None:
    places = ServerList("")
    assert places.next(JOINED) == "a:1"
    places.refused("c:1")
    assert places.next(JOINED) == "c:1"
    places.refused()
    assert places.next(JOINED) == "c:1", "then it goes on in order"


def test_when_a_stream_breaks_the_next_server_is_asked_first_it_knows_the_leader() -> None:
    places = ServerList("a:1,b:1,c:1")
    places.welcomed("b:1", ())
    places.refused()
    assert places.next(JOINED) == "c:1"


def test_what_an_operator_gives_goes_before_what_was_reported_when_joining() -> None:
    places = ServerList("x:1, y:1")
    assert places.all(JOINED) == ("x:1", "y:1")


def test_servers_that_a_server_tells_of_are_known_from_then_on() -> None:
    places = ServerList("")
    places.welcomed("a:1", ["a:1", "d:1"])
    assert places.all(("a:1",)) == ("a:1", "d:1")
    places.welcomed("d:1", ["d:1"])
    assert set(places.all(("a:1",))) == {"a:1", "d:1"}, "one that has just begun to lead knows only itself"


def test_without_any_server_there_is_nothing_to_try() -> None:
    assert ServerList("").next(()) == ""


def test_a_server_that_is_silent_is_left_out_for_a_while_also_if_others_name_it() -> None:
    places = ServerList("a:1,b:1,c:1")
    places.welcomed("a:1", ())
    places.silent("a:1")
    tried = []
    for _ in range(6):
        places.refused("a:1")
        tried.append(places.next(()))
    assert set(tried) == {"b:1", "c:1"}
    for _ in range(40):
        places.refused()
        tried.append(places.next(()))
    assert "a:1" in tried, "if no other server leads it may be back"
    places.silent("b:1")
    assert ServerList("b:1").next(()) == "b:1"


def test_the_only_server_is_tried_also_when_it_was_silent() -> None:
    places = ServerList("a:1")
    places.silent("a:1")
    assert places.next(()) == "a:1"
