"""What the tests of the command line share: a server without nodes, and a way to type commands."""

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from roost.cli import root
from tests.cli.serving import Served, serving

Type = Callable[..., Result]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server"), "server", "--store", "memory") as served:
        yield served


@pytest.fixture
def typed(server: Served) -> Type:
    """Type a command for that server, in this process."""

    def typed(*arguments: str, stdin: bytes | None = None) -> Result:
        runner = CliRunner(env={"ROOST_CONFIG": str(server.config), "ROOST_PROJECT": None})
        return runner.invoke(root, arguments, input=stdin, catch_exceptions=False)

    return typed
