"""The tables of states: complete, consistent, and printed as they are."""

from roost.model.states import ALLOCATED, FINISHED, MOVES, NODE_MOVES, InstanceState, NodeStatus
from tools.states import TARGET, page

LIVE = set(MOVES) - FINISHED


def test_the_printed_table_is_the_one_the_code_obeys() -> None:
    assert TARGET.read_text(encoding="utf-8") == page(), "run `python tools/states.py`"


def test_every_state_has_a_row_and_every_move_leads_to_a_state() -> None:
    for moves, states in ((MOVES, InstanceState), (NODE_MOVES, NodeStatus)):
        assert list(moves) == list(states)
        assert set().union(*moves.values()) <= set(states)
        assert all(state not in targets for state, targets in moves.items()), "staying is not a move"


def test_every_state_is_live_or_finished() -> None:
    assert FINISHED < set(MOVES)
    assert ALLOCATED < LIVE


def test_what_is_finished_can_only_be_queued_again() -> None:
    assert {target for state in FINISHED for target in MOVES[state]} == {"queued"}


def test_every_state_can_be_reached_and_every_live_one_can_end() -> None:
    def reach(start: str) -> set[str]:
        seen, queued_before = set(), [start]
        while queued_before:
            state = queued_before.pop()
            if state not in seen:
                seen.add(state)
                queued_before.extend(MOVES[state])
        return seen

    assert reach("queued") == set(MOVES)
    assert all(reach(state) & FINISHED for state in LIVE)
    assert all("cancelled" in reach(state) for state in LIVE), "whatever lives can be cancelled"
