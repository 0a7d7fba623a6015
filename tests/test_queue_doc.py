"""docs/guides/queue.md says what is true: its documents are taken, its commands exist, its metrics are reported."""

import json
import re
import shlex
from pathlib import Path

import pytest
import ryaml
from click.testing import CliRunner

from roost.cli import root
from roost.model.spec.document import check_document, read_document
from tests.server.inprocess_server import inprocess_server

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "guides" / "queue.md").read_text(encoding="utf-8")
DOCUMENTS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = sorted(set(re.findall(r"^roost [^#\n]+", TEXT, re.MULTILINE)))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_document_is_taken(document: str) -> None:
    assert check_document(read_document(ryaml.loads(document)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command: str, tmp_path: Path) -> None:
    """It gets as far as looking for a server, and there is none."""
    env = {"ROOST_CONFIG": str(tmp_path / "nowhere.toml"), "ROOST_URL": "http://127.0.0.1:9", "ROOST_TOKEN": "token"}
    result = CliRunner(env=env).invoke(root, shlex.split(command)[1:])
    assert result.exit_code == 255, result.output


async def test_every_metric_and_every_request_is_there() -> None:
    async with inprocess_server() as made:
        for name in ("n1", "n2", "n3", "n4"):
            await made.agent(name, pool="gpu")
        await made.submit()
        for method, path, body in re.findall(r"^(PUT|POST) +(/v1/\S+) +(\{.*\})$", TEXT, re.MULTILINE):
            answer = await made.client.request(method, path, json=json.loads(body))
            assert answer.status_code in (200, 201), answer.text
        page = (await made.client.get("/metrics")).text
        names = set(re.findall(r"`(roost_\w+)", TEXT))
        assert len(names) == 6 and all(f"\n{name}" in page for name in names)
