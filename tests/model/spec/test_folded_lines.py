"""Items of a list that YAML reads as the end of the line above."""

import pytest
import ryaml

from roost.model.errors import Invalid, Unreadable
from roost.model.spec.folded_lines import refuse_folded_items, refuse_folded_step
from roost.model.spec.submission import spec_of_document


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


@pytest.mark.parametrize(
    "text",
    [
        "steps:\n  - run: >\n      make\n      run: make test\n",
        "steps:\n  - run: |\n      make\n      run: make test\n",
        "steps:\n  - run: |\n      make\n      - run: make test\n",
        "steps:\n  - run: 'make\n    run: make test'\n",
        "steps:\n  - run: >\n      make\n      run:\n",
    ],
)
def test_a_step_with_the_key_of_another_one_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        spec_of_document({"name": "a", **ryaml.loads(text)}, "actions[1]")
    assert refused.value.path == "actions[1].steps[0].run"
    assert "has a second `run:` in it" in refused.value.message


@pytest.mark.parametrize(
    "line",
    [
        "npm run:test && yarn run:x",
        "echo 'now run: make'",
        'echo "now\nrun: make"',
        "cat > job.yaml <<END\nrun: make\nEND",
        "dry-run: && prun: x",
        "make  # runs: all",
    ],
)
def test_steps_that_only_mention_the_word_are_left_alone(line: str) -> None:
    refuse_folded_step(line, "steps[0]")
