"""From the options of `roost run` to a workload, and from how it ended to an exit code."""

import pytest
from click.testing import CliRunner

from roost.cli.run import exit_code_of, make_document, run
from roost.client.types import Ending

NOTHING = {param.name: param.get_default(CliRunner().get_default_prog_name and __import__("click").Context(run)) for param in run.params}


def document(*argv: str, **given: object) -> dict[str, object]:
    return make_document(argv, {**NOTHING, "resources": (), "variables": (), "require": (), "project": "default", **given})


def test_arguments_stay_a_list() -> None:
    made = document("sh", "-c", "echo $HOME", name="x")
    assert made == {"name": "x", "project": "default", "command": ["sh", "-c", "echo $HOME"], "resources": {}, "count": 1}
