"""roost ci cache: entries are listed and deleted, all or none."""

import json

from tests.cli.conftest import Type


def test_there_is_nothing_to_list_or_delete(typed: Type) -> None:
    done = typed("ci", "cache", "list")
    assert (done.exit_code, "there is nothing in the cache" in done.stderr) == (0, True)
    assert json.loads(typed("ci", "cache", "list", "--json").stdout) == []
    gone = typed("ci", "cache", "delete", "pip/1")
    assert (gone.exit_code, "the cache of project default has no key pip/1" in gone.stderr) == (1, True)
    assert json.loads(typed("ci", "cache", "delete", "--all", "--json").stdout) == {"deleted": 0}
    for arguments in ((), ("k", "--all")):
        assert typed("ci", "cache", "delete", *arguments).exit_code == 2
