"""Lines for a shell: no value of a parameter changes the words of a line, or runs as code."""

import os
import subprocess
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roost.model.errors import Invalid
from roost.model.spec.templates.placeholders import pieces_of
from roost.model.spec.templates.shell_lines import QuoteReader, line_in, shell_line

#: What a value may be: everything except NUL, and more of what shells obey.
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.text(
    "ab ;&|$()`'\"\\\n*?[]~#{}<>!-=%"
)
#: Lines, with the words that they have. {v} is the value.
LINES = [
    ("show {{v}}", ["{v}"]),
    ("show a{{v}}b", ["a{v}b"]),
    ('show "{{v}}"', ["{v}"]),
    ('show "a {{v}} b" c', ["a {v} b", "c"]),
    ("show --x={{v}} {{v}}", ["--x={v}", "{v}"]),
    ('show "$(printf %s {{v}}x)"', ["{v}x"]),
    ("show 'it is' {{v}}", ["it is", "{v}"]),
    ("show it\\'s {{v}}", ["it's", "{v}"]),
    ("# don't\nshow {{v}}", ["{v}"]),
    ('show "a\\"b" {{v}}', ['a"b', "{v}"]),
    ('x={{v}}; show "$x"', ["{v}"]),
    ("(show {{v}})", ["{v}"]),
    ("case a in a) show {{v}};; esac", ["{v}"]),
    ('show "${HOME:+x}" {{v}}', ["x", "{v}"]),
    ("if true; then show {{v}} {{{{; fi", ["{v}", "{{"]),
    ("show {{v}} # {{v}}", ["{v}"]),
]


def arguments_of(line: str, value: str) -> list[str]:
    """What a program gets that is called by a line."""
    text = f'show() {{ for word in "$@"; do printf \'%s\\0\' "$word"; done; }}\n{line}'
    env = {"PATH": os.environ["PATH"], "HOME": "/", "PARAM_v": value}
    done = subprocess.run(["/bin/sh", "-c", text], env=env, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=150, deadline=None)
@example(LINES[0], "; rm -rf /")
@example(LINES[2], "$(touch /tmp/owned)")
@example(LINES[3], "`id`")
@example(LINES[4], 'a\' "b" $HOME \\')
@example(LINES[7], "two\nlines\n; exit 3")
@example(LINES[5], "-n * ~ {a,b}")
@given(st.sampled_from(LINES), VALUES)
def test_no_value_changes_the_words_of_a_line(line: tuple[str, list[str]], value: str) -> None:
    text, expected = line
    found = arguments_of(shell_line(pieces_of(text, "steps[0]"), "steps[0]"), value)
    # $(...) drops newlines at the end; here there is an x behind the value
    assert found == [word.replace("{v}", value) for word in expected]


@pytest.mark.parametrize(
    "line",
    [
        "echo '{{v}}'",
        "echo \\{{v}}",
        "echo `echo {{v}}`",
        "cat <<EOF\n{{v}}\nEOF",
        "echo $'{{v}}'",
        "echo $(({{v}} + 1))",
        "(( {{v}} ))",
        "[[ {{v}} -eq 1 ]]",
        "echo ${x:-{{v}}}",
        'sh -c "echo {{v}}"',
        'cd /tmp && /bin/bash -ec "echo {{v}}"',
        'bash -o pipefail -c "echo {{v}}"',
        "eval {{v}}",
        "true; eval echo {{v}}",
        "ssh host echo {{v}}",
        "A=1 ssh host echo {{v}}",
        "sudo su -c {{v}}",
        "if true; then eval {{v}}; fi",
        "if ! eval {{v}}; then :; fi",
        "while /usr/bin/ssh host {{v}}; do :; done",
        'A="x y" ssh host {{v}}',
        "\"sh\" '-c' {{v}}",
        "echo $(nice ssh host {{v}})",
        'python3 -u -c "print({{v}})"',
        "perl -ne {{v}} file",
        'sed -i "s/a b/{{v}}/" file',
        "sed s/a/{{v}}/ file",
        "cat x | sed -e {{v}}",
        'awk -v a=b "BEGIN { print {{v}} }"',
        "awk {{v}}",
    ],
)
def test_line_in_which_a_value_could_be_read_as_code_is_refused(line: str) -> None:
    with pytest.raises(Invalid) as caught:
        shell_line(pieces_of(line, "steps[0]"), "steps[0]")
    assert caught.value.path == "steps[0]"
    assert "`env`" in caught.value.message or "without quotes" in caught.value.message


@pytest.mark.parametrize(
    "line",
    [
        "python main.py eval --lr {{v}}",
        "./bash.sh {{v}}",
        "make -c {{v}}",
        "git push ssh://host {{v}}",
        "sh run.sh {{v}}",
        "python -u train.py -c {{v}}",
        "awk -v lr={{v}} 'BEGIN { print lr }'",
        "sed -n 's/a/b/p' {{v}}",
        'sed "s/a b/c/" {{v}} | sort',
        "apt install sed {{v}}",
        "awk -f code.awk {{v}}",
    ],
)
def test_plain_line_is_not_refused(line: str) -> None:
    assert '"${PARAM_v}"' in shell_line(pieces_of(line, "steps[0]"), "steps[0]")


@given(st.text("ab \\'\"$(){}#\n;"), st.integers(0, 20))
def test_quotes_are_read_alike_in_one_piece_and_in_two(line: str, at: int) -> None:
    whole, parts = QuoteReader(), QuoteReader()
    whole.read(line)
    parts.read(line[:at])
    parts.read(line[at:])
    assert (whole.stack, whole.is_escaped) == (parts.stack, parts.is_escaped)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["bash", "-c", "echo {{v}}"], 2),
        (["/bin/sh", "-ec", "echo {{v}}", "sh", "{{v}}"], 2),
        (["bash", "-o", "pipefail", "-c", "echo {{v}}"], 4),
        (["nice", "bash", "-c", "-e", "echo {{v}}"], 4),
        (["bash", "run.sh", "-c", "{{v}}"], None),
        (["bash", "-c", "echo", "{{v}}"], None),
        (["nginx", "-c", "{{v}}"], None),
        (["awk", "-v", "a={{v}}", "BEGIN { print a }"], None),
        (["python", "train.py", "-c", "{{v}}"], None),
        (["python", "main.py", "eval", "{{v}}"], None),
        (["{{v}}", "--lr", "{{v}}"], None),
    ],
)
def test_line_in_a_list_of_arguments_is_found(arguments: list[str], found: int | None) -> None:
    assert line_in(arguments, "command") == found


@pytest.mark.parametrize(
    "arguments",
    [
        ["python3", "-c", "print({{v}})"],
        ["perl", "-e", "{{v}}"],
        ["node", "--eval", "{{v}}"],
        ["ssh", "host", "echo {{v}}"],
        ["sed", "-i", "s/a/{{v}}/", "file"],
        ["awk", "-v", "a=b", "{{v}}"],
        ["nice", "ssh", "host", "{{v}}"],
        ["{{v}}", "-c", "echo {{v}}"],
        ["bash", "-c{{v}}"],
    ],
)
def test_argument_that_a_program_reads_as_code_is_refused(arguments: list[Any]) -> None:
    with pytest.raises(Invalid, match="code"):
        line_in(arguments, "command")
