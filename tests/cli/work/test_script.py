"""Which word of a command is a script of this machine, and how it is run on a node."""

from pathlib import Path

import click
import pytest

from roost.cli.work.script import find_script


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    (work / "scripts").mkdir(parents=True)
    scripts = {
        "train.py": "print(1)",
        "tool": "#!/bin/sh\n",
        "scripts/go.sh": "echo",
        "env": "x",
        "bang": "#!/usr/bin/env -S awk\n",
        "plain": "x",
    }
    for name, text in scripts.items():
        (work / name).write_text(text)
    (work / "tool").chmod(0o755)
    (tmp_path / "above.sh").write_text("echo")
    monkeypatch.chdir(work)
    return work


@pytest.mark.parametrize(
    ("command", "to", "argv"),
    [
        ("train.py --lr 0.1", "train.py", "python3 ./train.py --lr 0.1"),
        ("./train.py", "train.py", "python3 ./train.py"),
        ("./tool x", "tool", "./tool x"),
        ("tool", "tool", "./tool"),
        ("scripts/go.sh", "scripts/go.sh", "sh ./scripts/go.sh"),
        ("../above.sh", "above.sh", "sh ./above.sh"),
        ("bang x", "bang", "/usr/bin/env -S awk ./bang x"),
        ("python3.11 -u train.py --lr 1", "train.py", "python3.11 -u ./train.py --lr 1"),
        ("/usr/bin/python3 train.py", "train.py", "/usr/bin/python3 ./train.py"),
        ("sh scripts/go.sh tool", "scripts/go.sh", "sh ./scripts/go.sh tool"),
    ],
)
def test_script(command: str, to: str, argv: str) -> None:
    script = find_script(command.split())
    assert script is not None
    assert (script.to, " ".join(script.argv)) == (to, argv)
    assert script.path == Path(next(word for word in command.split() if Path(word).name == Path(to).name))


@pytest.mark.parametrize(
    "command",
    [
        "echo train.py",
        "env",
        "python -m train.py",
        "sh -c tool",
        "scripts",
        "./nothing",
        "python",
        "python -",
        "cat tool",
        "",
    ],
)
def test_no_script(command: str) -> None:
    assert find_script(command.split()) is None


def test_absolute_path_is_one_of_the_node(folder: Path) -> None:
    assert find_script([str(folder / "tool")]) is None
    assert find_script(["sh", str(folder / "tool")]) is None


def test_file_that_nothing_runs_is_refused() -> None:
    with pytest.raises(click.UsageError, match=r"plain is not executable, and has no #! line: chmod \+x plain"):
        find_script(["./plain"])
