"""Values of an array's elements that stand in a file of their own: read by the command, reported with file and line."""

import os
from pathlib import Path
from typing import Any

import pytest

from roost.cli.common import array_file
from roost.cli.common.array_file import read_values, with_action_values, with_values
from roost.cli.common.exit_codes import NOT_PLACED, USAGE, WOULD_CHANGE, Failure
from roost.model.limits import EACH_BYTES_MAX, EACH_MAX, EACH_VARIABLES_MAX
from tests.cli.conftest import Type


def written(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def wrong(tmp_path: Path, name: str, text: str | bytes) -> str:
    """What is reported of a file that cannot be taken, without the directory."""
    written(tmp_path, name, text)
    with pytest.raises(Failure) as refused:
        with_values({"name": "a", "each": {"file": name}}, "sweep.yaml", tmp_path)
    assert refused.value.exit_code == USAGE
    return refused.value.message.replace(f"{tmp_path}/", "")


# what is read


def test_a_text_holds_a_value_on_each_line(tmp_path: Path) -> None:
    path = written(tmp_path, "seeds.txt", "\ufeffone\r\n\n  two words \n \t\nthree,3")
    assert read_values(path) == ["one", "  two words ", "three,3"]
    assert read_values(written(tmp_path, "seeds", '{"a": "b"}\n')) == ['{"a": "b"}'], "only what is called so is JSON"


def test_the_first_row_of_a_table_names_the_variables(tmp_path: Path) -> None:
    text = '\ufeffRATE, SEED\r\n0.1,1\r\n\r\n"0,2","two\nlines"\r\n,\r\n'
    assert read_values(written(tmp_path, "sweep.CSV", text)) == [
        {"RATE": "0.1", "SEED": "1"},
        {"RATE": "0,2", "SEED": "two\nlines"},
        {"RATE": "", "SEED": ""},
    ]


def test_json_holds_texts_and_mappings_by_line_or_in_a_list(tmp_path: Path) -> None:
    values = ["plain", {"RATE": "0.1", "SEED": "1"}]
    lines = '"plain"\n\n{"RATE": "0.1", "SEED": "1"}\n'
    assert read_values(written(tmp_path, "a.jsonl", lines)) == values
    assert read_values(written(tmp_path, "a.json", '["plain",\n {"RATE": "0.1", "SEED": "1"}]\n')) == values


def test_documents_without_a_file_stay_as_they_are(tmp_path: Path) -> None:
    for document in ({"name": "a"}, {"name": "a", "each": ["x"]}, {"name": "a", "each": 3}, 7, None):
        assert with_values(document, "x.yaml", tmp_path) is document
    for pipeline in ({"name": "a"}, {"actions": 3}, [1]):
        assert with_action_values(pipeline, "x.yaml", tmp_path) is pipeline


# what is refused


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("params.csv", "A,B,C\n1,2,3\n1,2\n", "line 3: 2 values for 3 names"),
        ("params.csv", 'A,B\n"1\n2",3\n1\n', "line 4: 1 value for 2 names"),
        ("params.csv", "A,B\n1,2\n1,2,3\n", "line 3: 3 values for 2 names"),
        ("params.csv", "A,,C\n1,2,3\n", "line 1: column 2 has no name that a variable can have: ''"),
        ("params.csv", "A,B=C\n1,2\n", "line 1: column 2 has no name that a variable can have: 'B=C'"),
        ("params.csv", "A,B,A\n1,2,3\n", "line 1: two columns are called A"),
        ("params.csv", 'A,B\n1,2\n1,"2\n', "line 3: this is not CSV: unexpected end of data"),
        ("params.csv", "A,B\n", "there is no value in it"),
        ("params.txt", "", "there is no value in it"),
        ("params.txt", " \n\n", "there is no value in it"),
        ("params.txt", "a\nb\0\n", "line 2: 'ROOST_VALUE' is not a variable, or its value holds a NUL"),
        ("params.txt", b"a\nb\n\xff\n", "line 3: this is not UTF-8: invalid start byte"),
        ("params.jsonl", '"a"\n\n{"A": 1}\n', "line 3: the value of a variable is a text in quotes, not int"),
        ("params.jsonl", '"a"\n[1]\n', "line 2: a value is a text or a mapping of variables, not array"),
        ("params.jsonl", '"a"\n{}\n', "line 2: this must be 1 to 64 variables, not 0"),
        ("params.jsonl", '"a"\n{"A": \n', "line 2: this is not JSON: Input data was truncated"),
        ("params.jsonl", '"a"\n"\\ud800"\n', "line 2: this is not JSON: Input data was truncated"),
        ("params.json", '{"A": "1"}', "this is a list of texts or mappings"),
        ("params.json", '["a",\n"b",\nc]', "line 3: this is not JSON: JSON is malformed: invalid character"),
        ("params.json", '["a", {"A": null}]', "value 1: the value of a variable is a text in quotes, not null"),
        ("params.json", "[]", "there is no value in it"),
        ("params.json", "\n", "there is no value in it"),
    ],
)
def test_what_is_wrong_is_reported_with_file_and_line(
    tmp_path: Path, name: str, text: str | bytes, message: str
) -> None:
    assert wrong(tmp_path, name, text).startswith(f"sweep.yaml: each: {name}: {message}")


def test_a_file_is_bounded_in_everything(tmp_path: Path) -> None:
    many = "\n".join(["x"] * (EACH_MAX + 1))
    assert wrong(tmp_path, "a.txt", many).endswith(
        f"line {EACH_MAX + 1}: an array has at most 10,000 values, and this is one more"
    )
    assert len(read_values(written(tmp_path, "b.txt", many[:-2]))) == EACH_MAX
    names = ",".join(f"V{number}" for number in range(EACH_VARIABLES_MAX + 1))
    assert wrong(tmp_path, "a.csv", f"{names}\n").endswith("line 1: a value has at most 64 variables; these are 65")
    assert wrong(tmp_path, "b.csv", "A\n" + "x" * 140_000).endswith("field larger than field limit (131072)")
    assert "line 1: this is not JSON: " in wrong(tmp_path, "deep.json", "[" * 100_000)
    large = "\n".join(["x" * 1_000] * (EACH_BYTES_MAX // 1_000))
    assert "all values together may have 262,144 bytes" in wrong(tmp_path, "c.txt", large)


def test_never_more_than_its_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no room on the disk
    with pytest.raises(Failure) as refused:
        with_values({"each": {"file": str(path)}}, "x.yaml", tmp_path)
    assert refused.value.message.endswith("a file of values may have 2,097,152 bytes; this one has more")
    monkeypatch.setattr(array_file, "BYTES_MAX", 5)
    assert read_values(written(tmp_path, "fits.txt", "a\nb\nc")) == ["a", "b", "c"]
    assert "may have 5 bytes" in wrong(tmp_path, "not.txt", "a\nb\nc\n")


def test_only_regular_files_are_read_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name, message in (
        ("pipe", "this is not a regular file"),
        ("/dev/zero", "this is not a regular file"),
        ("none.csv", "No such file or directory"),
    ):
        with pytest.raises(Failure, match=message):
            with_values({"each": {"file": name}}, "x.yaml", tmp_path)
    with pytest.raises(Failure, match="directory"):
        with_values({"each": {"file": "directory"}}, "x.yaml", tmp_path)


@pytest.mark.parametrize("block", [{}, {"file": 3}, {"file": ""}, {"file": "a\0"}, {"file": "a", "key": "b"}, {1: "a"}])
def test_a_block_that_names_no_file_is_refused(tmp_path: Path, block: dict[Any, Any]) -> None:
    with pytest.raises(Failure, match=r"x.yaml: each: this is a list of texts or mappings, or a file such as"):
        with_values({"each": block}, "x.yaml", tmp_path)


# the commands


def test_plan_and_apply_read_files_beside_the_document(typed: Type, tmp_path: Path) -> None:
    written(tmp_path, "values.csv", "RATE,SEED\n0.1,1\n0.2,2\n0.3,3\n")
    file = written(tmp_path, "each.yaml", "name: each-file\ncommand: 'true'\neach: {file: values.csv}\n")
    assert typed("plan", "-f", str(file)).exit_code == WOULD_CHANGE
    assert typed("apply", "-f", str(file)).exit_code == NOT_PLACED
    assert '"count": 3' in typed("show", "each-file", "--json").stdout
    again = typed("apply", "-f", str(file))
    assert "unchanged" in again.stdout
    assert typed("cancel", "each-file").exit_code == 0


def test_a_document_of_a_pipe_names_files_from_here(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    written(tmp_path, "here/values.txt", "a\nb\n")
    monkeypatch.chdir(tmp_path / "here")
    document = b"name: each-piped\ncommand: 'true'\neach: {file: values.txt}\n"
    assert typed("plan", "-f", "-", stdin=document).exit_code == WOULD_CHANGE
    monkeypatch.chdir(tmp_path)
    missing = typed("plan", "-f", "-", stdin=document)
    assert missing.exit_code == USAGE
    assert "-: each: values.txt: No such file or directory" in missing.output


def test_of_several_documents_the_wrong_one_is_named(typed: Type, tmp_path: Path) -> None:
    written(tmp_path, "values.csv", "RATE,SEED\n0.1\n")
    text = "name: a\ncommand: 'true'\n---\nname: b\ncommand: 'true'\neach: {file: values.csv}\n"
    refused = typed("apply", "-f", str(written(tmp_path, "two.yaml", text)))
    assert refused.exit_code == USAGE
    assert f"two.yaml: workload 2: each: {tmp_path}/values.csv: line 2: 1 value for 2 names" in refused.output
    assert typed("show", "a").exit_code == 1, "nothing of it was taken in"


def test_actions_of_a_pipeline_read_files_too(typed: Type, tmp_path: Path) -> None:
    values = written(tmp_path, "colours.jsonl", '"red"\n"green"\n')
    text = (
        "name: p\nactions:\n- {name: a, steps: ['true']}\n- {name: b, steps: ['true'], each: {file: colours.jsonl}}\n"
    )
    file = written(tmp_path, "pipeline.yaml", text)
    shown = typed("ci", "check", str(file))
    assert shown.exit_code == 0, shown.output
    assert "2 elements" in shown.stdout
    values.write_text("red\n")
    refused = typed("ci", "run", str(file))
    assert refused.exit_code == USAGE
    assert f"pipeline.yaml: actions[1].each: {values}: line 1: this is not JSON" in refused.output
