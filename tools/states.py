"""Write docs/reference/states.md: the transition tables of instances and nodes, as the code has them."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from roost.model.states import ALLOCATED, FINISHED, MOVES, NODE_MOVES, InstanceState, NodeStatus

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "states.md"

PAGE = """\
# States

Printed from `src/roost/model/states.py` by `make docs`; a test compares the two. A row is the
current state, a column the next one. Other transitions are refused: an assertion in the core, a 409
with the story at the API. Their meaning:
[instance-states.md](../concepts/instance-states.md).

## Instances

{instances}

States with an allocation: {holding}.

Finished: {finished}.

- `queued → failed`, `queued → rejected`: no attempt ran.
- `queued → expired`: the queue timeout or the deadline has passed.
- `lost` is transient: the instance is requeued or ends at once, by `when_lost` and `retries`.
- `stopping → queued`: it was stopped to run elsewhere, for example because its node is drained.
- Every finished instance may be queued again, by `retries` or by `roost retry`.

## Nodes

{nodes}

- `suspect`: its session ended. `lost`: its lease ended, so its work may run elsewhere.
- `stopped`: its agent was shut down, and nothing ran there.
- `drained`: out of service, and no work is left. `gone`: deleted.
"""


def page() -> str:
    """The whole page."""
    return PAGE.format(
        instances=table(MOVES),
        nodes=table(NODE_MOVES),
        holding=names(state for state in MOVES if state in ALLOCATED),
        finished=names(state for state in MOVES if state in FINISHED),
    )


def table(
    moves: Mapping[InstanceState, Collection[InstanceState]] | Mapping[NodeStatus, Collection[NodeStatus]],
) -> str:
    """One mark for every legal move."""
    names = list(moves)
    lines = ["| from, to | " + " | ".join(names) + " |", "|---|" + ":-:|" * len(names)]
    for state, targets in moves.items():
        marks = ["●" if target in targets else " " for target in names]
        lines.append(f"| **{state}** | " + " | ".join(marks) + " |")
    return "\n".join(lines)


def names(states: Iterable[str]) -> str:
    return ", ".join(f"`{state}`" for state in states)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    print(f"states: {TARGET.relative_to(TARGET.parent.parent)}")
