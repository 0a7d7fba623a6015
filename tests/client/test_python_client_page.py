"""docs/reference/python-client.md: its code runs as it stands, and its table has every method."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.client import Client
from roost.client.namespace import Namespace
from tests.cli.serving import Served, up

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/python-client.md").read_text(encoding="utf-8")
NOT_FOR_USERS = {"changes.open", "workloads.page"}  # parts of waiting
NO_PUT = {"reservations.set", "tokens.set", "join_tokens.set"}  # a noun without PUT


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with up(tmp_path) as served:
        yield served


def test_the_code_of_the_page_runs(
    one: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROOST_CONFIG", str(one.config))
    exec("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "succeeded b'hello\\n'"
    assert printed[2:5] == ["0 b'0\\n'", "1 b'1\\n'", "2 b'2\\n'"]
    assert printed[5:7] == ["1 22", "sent x"]
    assert printed[7].startswith("422 ") and printed[7].endswith(" resources.cpu")


def test_the_table_has_every_namespace_and_method() -> None:
    table = PAGE.partition("## Namespaces")[2].partition("##")[0]
    named = set(re.findall(r"`([a-z_.]+)`", table))
    with Client("http://127.0.0.1:1") as client:
        namespaces = {name: part for name, part in vars(client).items() if isinstance(part, Namespace)}
    missing = [
        f"{name}.{method}"
        for name, part in namespaces.items()
        for method in dir(part)
        if callable(getattr(part, method))
        and not method.startswith("_")
        and f"{name}.{method}" not in NOT_FOR_USERS | NO_PUT
        if method not in named and f"{name}.{method}" not in named
    ]
    assert missing == []
    assert set(namespaces) - named == set()
