"""roost plan and roost apply --plan: exit codes, what is printed, what is done."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import Type

Write = Callable[[str, str], str]

WAITS = "name: {name}\ncommand: 'true'\n"


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return written


def token_of(result: Result) -> str:
    return str(json.loads(result.stdout)["token"])


def test_changes_are_exit_code_3_and_applying_the_plan_leaves_none(typed: Type, written: Write) -> None:
    file = written("one.yaml", WAITS.format(name="planned"))
    shown = typed("plan", "-f", file)
    assert shown.exit_code == 3
    for message in ("default/planned", "create", "no_nodes", "roost apply --plan"):
        assert message in shown.output
    assert typed("show", "planned").exit_code == 1  # nothing was done
    token = token_of(typed("plan", "-f", file, "--json"))
    applied = typed("apply", "-f", file, "--plan", token)
    assert applied.exit_code == 4 and "created" in applied.output
    again = typed("plan", "-f", file)
    assert again.exit_code == 0 and "unchanged" in again.output
    stale = typed("apply", "-f", file, "--plan", token)
    assert stale.exit_code == 1 and "the plan is stale" in stale.output
    assert typed("cancel", "planned").exit_code == 0


def test_a_plan_of_several_is_applied_whole(typed: Type, written: Write) -> None:
    text = "---\n".join(WAITS.format(name=name) for name in ("several-a", "several-b"))
    file = written("two.yaml", text)
    token = token_of(typed("plan", "-f", file, "--json"))
    assert typed("apply", "-f", file, "--plan", token).exit_code == 4
    assert typed("cancel", "several-a", "several-b").exit_code == 0


def test_what_does_not_queue_and_has_no_room_is_an_error_alone_and_in_a_batch(typed: Type, written: Write) -> None:
    impatient = WAITS.format(name="impatient") + "when_full: reject\n"
    alone = typed("apply", "-f", written("alone.yaml", impatient))
    assert alone.exit_code == 4 and "default/impatient was rejected: no_nodes" in alone.stderr
    assert "impatient" not in alone.stdout
    several = written("several.yaml", "---\n".join(impatient.replace("impatient", name) for name in ("hasty", "rash")))
    among = typed("apply", "-f", several)
    assert among.exit_code == 4 and "hasty was rejected: no_nodes" in among.stderr


def test_wrong_files_and_wrong_tokens_are_wrong_usage(typed: Type, written: Write) -> None:
    good = written("good.yaml", WAITS.format(name="fine"))
    bad = written("bad.yaml", "name: fine\ncount: -1\ncommand: 'true'\n")
    empty = written("empty.yaml", "")
    for file in (bad, empty, "nowhere.yaml"):
        assert typed("plan", "-f", file).exit_code == 2, file
    wrong = typed("plan", "-f", bad)
    assert "bad.yaml: count" in wrong.output
    unknown = typed("apply", "-f", good, "--plan", "made-up")
    assert unknown.exit_code == 2 and "unknown plan" in unknown.output
    token = token_of(typed("plan", "-f", good, "--json"))
    other = written("other.yaml", WAITS.format(name="other"))
    mismatch = typed("apply", "-f", other, "--plan", token)
    assert mismatch.exit_code == 1 and "other documents" in mismatch.output
    assert typed("plan", "-f", good).exit_code == 3  # none of it was done


def test_why_says_what_would_help_where_it_stands_and_when(typed: Type, written: Write) -> None:
    for name, priority in (("first-in-line", 100), ("second-in-line", 99)):  # others may wait at the same server
        file = written(f"{name}.yaml", WAITS.format(name=name) + f"resources: {{cpu: 2}}\npriority: {priority}\n")
        assert typed("apply", "-f", file).exit_code == 4
    report = typed("why", "second-in-line").output
    for message in ("no node is online", "Queue:", "default/first-in-line.0", "Start:"):
        assert message in report, report
    assert "one more node with 2 cpu" in typed("why", "first-in-line").output
    answer = json.loads(typed("why", "first-in-line", "--json").stdout)
    assert {"verdict", "suggestions", "position", "queued_before", "estimate"} <= answer.keys()
    assert typed("cancel", "first-in-line", "second-in-line").exit_code == 0
