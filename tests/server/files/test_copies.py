"""The copies that a leader knows: what nodes are asked for, limits, and when it gives up."""

from roost.model.protocol import CopyOrder, CopyReport
from roost.model.records.files import FileSet
from roost.server.files.copies import (
    ASKED_MS_MAX,
    COPIES_MAX,
    PER_NODE_MAX,
    PER_PRINCIPAL_MAX,
    TAKEN_MS_MAX,
    TIME_MS_MAX,
    Copy,
    CopyTable,
)

SET = FileSet("sha256:" + "1" * 64, 2, 30)


def copy(id: str, *, node: str = "n1", who: str = "ann", project: str = "web", files: FileSet | None = SET) -> Copy:
    order = CopyOrder(id, 7, "path", files.digest if files is not None else "")
    return Copy(order, project, f"{project}/job.0", node, who, 0, 0, 0, files)


def table(*copies: Copy) -> CopyTable:
    found = CopyTable()
    for item in copies:
        found.begin(item)
    return found


def live(_: Copy) -> bool:
    return True


def test_a_node_is_asked_until_it_has_taken_its_copies_and_again_when_it_returns() -> None:
    made = table(copy("a"), copy("b", node="n2"))
    assert made.is_due("n1") and made.due_nodes() == {"n1", "n2"}
    assert [order.id for order in made.take("n1")] == ["a"]
    assert not made.is_due("n1") and made.due_nodes() == {"n2"}
    made.offer_again("n1", 5)
    assert made.is_due("n1") and [order.id for order in made.take("n1")] == ["a"]


def test_a_copy_that_is_not_wanted_is_taken_back() -> None:
    made = table(copy("a"))
    made.take("n1")
    assert made.end("a") is not None and made.is_due("n1")
    assert made.take("n1") == [] and not made.is_due("n1") and made.is_empty
    assert made.end("a") is None


def test_an_outcome_counts_once_and_only_of_the_node_and_the_attempt() -> None:
    made = table(copy("a", files=None))
    for node, report in (("n2", CopyReport("a", 7)), ("n1", CopyReport("a", 8)), ("n1", CopyReport("b", 7))):
        assert made.reported(node, report, None) is None
    found = made.reported("n1", CopyReport("a", 7), SET)
    assert found is not None and found.files == SET and not found.is_under_way
    assert made.reported("n1", CopyReport("a", 7, message="again"), None) is None
    assert made.in_transit("web") == [SET] and made.in_transit("other") == []


def test_what_cannot_become_anything_is_given_up() -> None:
    made = table(copy("a"))
    made.asked("a", TAKEN_MS_MAX)
    assert not list(made.expire(TAKEN_MS_MAX - 1, live))
    found = made.find("a")
    assert found is not None and found.is_under_way
    list(made.expire(TAKEN_MS_MAX, live))
    found = made.find("a")
    assert found is not None and found.given_up == "not_taken" and made.take("n1") == []
    made = table(copy("a"))
    made.take("n1")
    made.asked("a", TIME_MS_MAX)
    list(made.expire(TIME_MS_MAX - 1, live))
    found = made.find("a")
    assert found is not None and found.is_under_way
    list(made.expire(TIME_MS_MAX, live))
    assert found.given_up == "too_long"
    made = table(copy("a"))
    list(made.expire(1, lambda item: False))
    found = made.find("a")
    assert found is not None and found.given_up == "ended" and made.is_due("n1")


def test_a_copy_whose_client_has_gone_is_let_go() -> None:
    made = table(copy("a"), copy("b"))
    made.take("n1")
    made.asked("b", 1)
    assert [item.order.id for item in made.expire(ASKED_MS_MAX, live)] == ["a"]
    assert [order.id for order in made.take("n1")] == ["b"] and made.manifests(7) == {SET.digest}
    made.reported("n1", CopyReport("b", 7), None)
    assert made.manifests(7) == set(), "its node reads it no more"
    assert made.in_transit("web") == [SET], "what is done counts until its client has gone"


def test_copies_are_limited_per_node_per_principal_and_in_all() -> None:
    made = table(*(copy(f"a{number}", who=f"p{number}") for number in range(PER_NODE_MAX)))
    assert "n1" in made.refusal("n1", "ann") and not made.refusal("n2", "ann")
    made.reported("n1", CopyReport("a0", 7), None)
    assert not made.refusal("n1", "ann")
    made = table(*(copy(f"a{number}", node=f"n{number}") for number in range(PER_PRINCIPAL_MAX)))
    assert "ann" in made.refusal("n99", "ann") and not made.refusal("n99", "bob")
    made = table(*(copy(f"a{number}", node=f"n{number}", who=f"p{number}") for number in range(COPIES_MAX)))
    assert f"{COPIES_MAX:,}" in made.refusal("n", "ann")
