"""Write docs/states.md: the state machines of instances and nodes, printed from the tables that the code obeys."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from roost.model.states import FINISHED, HOLDING, MOVES, NODE_MOVES

TARGET = Path(__file__).resolve().parent.parent / "docs" / "states.md"

PAGE = """\
# States

Printed from `src/roost/model/states.py` by `python tools/states.py`; a test holds it to the code. A row is where
something is, a column where it may go. Whatever is not marked is refused: an assertion in the core, a 409 with the
story at the API.

## Instances

{instances}

Takes room on its node: {holding}. Finished: {finished}.

- `queued → failed`, `queued → rejected`: nothing ran. `queued → expired`: its queue timeout or its deadline has passed.
- `lost` is passed through, never stayed in: from there it is queued again, or it ends, by `when_lost` and `retries`.
- `stopping → queued`: it was stopped in order to run elsewhere, off a draining node.
- Whatever ended may be queued again: by `retries`, or because somebody asked (`roost retry`).

## Nodes

{nodes}

- `suspect`: its stream broke. `lost`: its lease has ended without a word, so what it ran may run elsewhere.
- `drained`: out of service, and nothing runs there any more. `gone`: forgotten.
"""


def page() -> str:
    """The whole page."""
    return PAGE.format(
        instances=table(MOVES),
        nodes=table(NODE_MOVES),
        holding=words(state for state in MOVES if state in HOLDING),
        finished=words(state for state in MOVES if state in FINISHED),
    )


def table(moves: Mapping[str, Collection[str]]) -> str:
    """One mark for every legal move."""
    names = list(moves)
    lines = ["| from, to | " + " | ".join(names) + " |", "|---|" + ":-:|" * len(names)]
    for state, targets in moves.items():
        marks = ["●" if target in targets else " " for target in names]
        lines.append(f"| **{state}** | " + " | ".join(marks) + " |")
    return "\n".join(lines)


def words(states: Iterable[str]) -> str:
    return ", ".join(f"`{state}`" for state in states)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
    print(f"states: {TARGET.relative_to(TARGET.parent.parent)}")
