"""Items of a list that YAML reads as the end of the line above."""

import pytest
import ryaml

from roost.model.errors import Unreadable
from roost.model.spec.folded_lines import refuse_folded_items


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: web\nsteps:\n  - npm install\n    - npm run build\n", 4),
        ("steps:\n- run: make all\n    - make test\n", 3),
        ("steps:\n  - a\n  - b\n      -   c   d\n  - e\n", 4),
    ],
)
def test_an_item_that_is_part_of_the_line_above_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(Unreadable) as refused:
        refuse_folded_items(text, ryaml.loads(text))
    assert refused.value.params == {"line": line}
    assert f"line {line} looks like an item of a list, but is read as the end of line {line - 1}" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "steps:\n  - npm install\n  - npm run build\n",
        "steps:\n- npm install\n- - x\n",
        "a:\n  - b:\n      - c\n",
        "steps:\n  - |\n    echo a\n      - b\n  - run: >\n      echo a\n        - b\n",
        "steps:\n  - make a - b\n",
        "",
        "a: b # c\nd:\n    - e\n",
    ],
)
def test_other_lists_and_scripts_are_left_alone(text: str) -> None:
    refuse_folded_items(text, ryaml.loads(text))
