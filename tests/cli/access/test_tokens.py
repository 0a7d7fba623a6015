"""roost tokens, members, audit, whoami, login: from the command line, against a real server and a real issuer."""

import json
import stat
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from roost.cli import root
from roost.cli.common.exit_codes import FAILED, NO_SERVER, USAGE
from roost.client import ApiError, Client
from roost.client.config import read_config
from tests.cli.conftest import Type
from tests.cli.serving import Served, serving
from tests.security.issuer import CLIENT, LocalIssuer, local_issuer

NUMBERS = count()


@pytest.fixture
def name() -> str:
    return f"robot-{next(NUMBERS)}"


def row(typed: Type, name: str) -> list[str]:
    lines = typed("tokens").stdout.splitlines()
    return next(line.split() for line in lines if line.split()[0] == name)


def test_create_prints_the_token_once_and_it_works(typed: Type, server: Served, name: str) -> None:
    result = typed("tokens", "create", name, "--role", "submitter", "--project", "web", "--expires", "30d")
    assert result.exit_code == 0
    token = result.stdout.strip()
    assert token.startswith(f"roost_{name}_") and result.stdout.count("\n") == 1
    assert f"token {name}: submitter in web, expires in 30d" in result.stderr
    config = read_config(server.config)
    with Client(config.url, token, config.ca) as client:
        client.workloads.submit({"name": name, "project": "web", "command": "true"})
        with pytest.raises(ApiError) as refused:
            client.workloads.submit({"name": name, "project": "shop", "command": "true"})
        assert (refused.value.status, refused.value.code) == (403, "forbidden")
        assert "shop" in str(refused.value) and "roost whoami" in refused.value.hint
    assert row(typed, name)[:5] == [name, "submitter", "web", "in", "30d"]
    assert token.rpartition("_")[2] not in typed("tokens", "--json").stdout + typed("tokens", "list").stdout


def test_a_token_that_is_refused_says_where_tokens_come_from(server: Served, tmp_path: Path) -> None:
    config, document = tmp_path / "config", "name: job\ncommand: 'true'\n"
    config.write_text(server.config.read_text().replace(read_config(server.config).token, "roost_nobody_0000"))
    environment = {"ROOST_CONFIG": str(config), "ROOST_PROJECT": None}
    for command in (["ps"], ["run", "--detach", "--", "true"], ["wait", "job"], ["apply", "-f", "-"], ["doctor"]):
        result = CliRunner(env=environment).invoke(root, command, input=document, catch_exceptions=False)
        assert result.exit_code == FAILED, result.output
        for place in ("ROOST_TOKEN", "ROOST_CONFIG", "`roost login`"):
            assert place in result.output, (command, result.output)
        assert "Authorization" not in result.output


def test_rotate_and_revoke(typed: Type, server: Served, name: str) -> None:
    config = read_config(server.config)

    def comes_in(token: str) -> bool:
        with Client(config.url, token, config.ca) as client:
            try:
                client.whoami()
            except ApiError as error:
                assert error.status == 401
                return False
        return True

    old = typed("tokens", "create", name, "--role", "viewer", "--everywhere").stdout.strip()
    new = json.loads(typed("tokens", "rotate", name, "--overlap", "10m", "--json").stdout)["token"]
    assert comes_in(old) and comes_in(new)
    newest = typed("tokens", "rotate", name, "--overlap", "0").stdout.strip()
    assert not comes_in(old) and not comes_in(new) and comes_in(newest)
    assert typed("tokens", "revoke", name).exit_code == 0
    assert not comes_in(newest)
    again = typed("tokens", "revoke", name)
    assert again.exit_code == FAILED and name in again.stderr


def test_json_everywhere(typed: Type, name: str) -> None:
    made = json.loads(typed("tokens", "create", name, "--role", "viewer", "-p", "a", "-p", "b", "--json").stdout)
    assert (made["projects"], made["token"][:6]) == (["a", "b"], "roost_")
    assert name in [load["name"] for load in json.loads(typed("tokens", "--json").stdout)]
    assert json.loads(typed("tokens", "revoke", name, "--json").stdout) == {"name": name}
    assert json.loads(typed("whoami", "--json").stdout)["roles"] == {"*": "admin"}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ((), "--role"),
        (("--role", "king", "-p", "web"), "--role"),
        (("--role", "viewer"), "--everywhere"),
        (("--role", "viewer", "-p", "web", "--everywhere"), "--everywhere"),
        (("--role", "viewer", "-p", "web", "--expires", "10y"), "expires"),
        (("--role", "viewer", "-p", "a/b"), "projects"),
    ],
)
def test_wrong_usage_makes_nothing(typed: Type, name: str, message: tuple[str, ...], text: str) -> None:
    result = typed("tokens", "create", name, *message)
    assert result.exit_code == USAGE and text in result.stderr
    assert name not in typed("tokens", "--json").stdout


def test_members(typed: Type, name: str) -> None:
    assert typed("members", "set", "Ann@example.com", "--role", "submitter", "-p", name).exit_code == 0
    (line,) = typed("members", "list", "-p", name).stdout.splitlines()[1:]
    assert line.split()[:3] == [name, "ann@example.com", "submitter"] and line.split()[-1] == "root"
    assert typed("members", "set", "ann@example.com", "--role", "king", "-p", name).exit_code == USAGE
    assert json.loads(typed("members", "list", "-p", name, "--json").stdout)[0]["role"] == "submitter"
    assert typed("members", "remove", "ann@example.com", "-p", name).exit_code == 0
    assert typed("members", "remove", "ann@example.com", "-p", name).exit_code == FAILED
    assert "no user has a role" in typed("members", "list", "-p", name).stderr


def test_audit(typed: Type, server: Served, name: str) -> None:
    token = typed("tokens", "create", name, "--role", "submitter", "-p", "web").stdout.strip()
    config = read_config(server.config)
    with Client(config.url, token, config.ca) as client:
        client.workloads.submit({"name": name, "project": "web", "command": "true"})
    (entry,) = json.loads(typed("audit", "--who", f"token:{name}", "--json").stdout)
    assert (entry["what"], entry["target"], entry["where"]) == ("submit", f"web/{name}", "127.0.0.1")
    first = typed("audit", "--limit", "2").stdout.splitlines()
    assert first[0].split() == ["TIME", "PRINCIPAL", "FROM", "CHANGE", "OBJECT"]
    assert f"web/{name}" in first[1] and f"token {name}" in first[2]
    assert "no change matches" in typed("audit", "--who", "nobody").stderr


@pytest.fixture(scope="module")
def signing() -> Iterator[LocalIssuer]:
    with local_issuer() as found:
        yield found


@pytest.fixture(scope="module")
def believing(tmp_path_factory: pytest.TempPathFactory, signing: LocalIssuer) -> Iterator[Served]:
    """A server that believes the issuer."""
    arguments = ("--store", "memory", "--oidc-issuer", signing.url, "--oidc-client-id", CLIENT)
    with serving(tmp_path_factory.mktemp("server"), "server", *arguments) as served, served.client() as client:
        client.members.set("web", "ann@example.com", role="submitter")
        yield served


class Home:
    """The directory of a client that logs in, and what is typed."""

    def __init__(self, path: Path, served: Served) -> None:
        self.path = path / ".config" / "roost" / "client.toml"
        self.env = {"HOME": str(path), "ROOST_CONFIG": None, "XDG_CONFIG_HOME": None, "ROOST_TOKEN": None}
        self.url = read_config(served.config).url

    def type(self, *message: str) -> Result:
        return CliRunner(env=self.env).invoke(root, message, catch_exceptions=False)

    def read(self) -> str:
        return self.path.read_text()


@pytest.fixture
def home(tmp_path: Path, believing: Served, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A client whose browser goes where it is sent, and back."""
    monkeypatch.setattr("webbrowser.open", lambda url: threading.Thread(target=browse, args=(url,)).start())
    return Home(tmp_path, believing)


def browse(url: str) -> None:
    for _ in range(3):
        parts = urlsplit(url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        url = answer.headers.get("Location", "")
        if not url:
            return


def test_login_use_and_logout(home: Home) -> None:
    result = home.type("login", "--server", home.url)
    assert result.exit_code == 0, result.stderr
    assert "you are user:ann@example.com; submitter in web" in result.stderr
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o600
    assert home.type("whoami").stdout.startswith("user:ann@example.com, until ")
    assert json.loads(home.type("ps", "--json").stdout) == []
    refused = home.type("nodes", "remove", "n1")
    assert refused.exit_code == FAILED and "role operator everywhere" in refused.stderr
    assert home.type("logout").exit_code == 0
    assert not home.path.exists() and home.type("logout").exit_code == FAILED
    assert home.type("whoami").exit_code == NO_SERVER


def test_a_login_that_ends_is_renewed_by_itself(home: Home, signing: LocalIssuer) -> None:
    signing.lifetime_s = 30  # less than what is left to a command
    try:
        assert home.type("login", "--server", home.url).exit_code == 0
    finally:
        signing.lifetime_s = 3_600
    before, used = home.read(), signing.refresh[-1]
    assert home.type("whoami").exit_code == 0
    assert home.read() != before and signing.refresh[-1] != used and signing.refresh[-1] in home.read()
    after = home.read()
    assert home.type("whoami").exit_code == 0
    assert home.read() == after  # it lasts for an hour now
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o600


def test_a_login_that_cannot_be_renewed_says_what_to_do(home: Home, signing: LocalIssuer) -> None:
    signing.lifetime_s = 30
    try:
        assert home.type("login", "--server", home.url).exit_code == 0
    finally:
        signing.lifetime_s = 3_600
    signing.refresh.append("another")  # it has been used
    result = home.type("whoami")
    assert result.exit_code == FAILED and "refresh token was used" in result.stderr and "roost login" in result.stderr


def test_a_code_that_was_not_asked_for_is_not_taken(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client's page sends the browser to our port with a code of its own."""

    def misled(url: str) -> None:
        query = dict(part.split("=", 1) for part in urlsplit(url).query.split("&"))
        port = query["redirect_uri"].partition("127.0.0.1%3A")[2].partition("%2F")[0]
        browse(f"http://127.0.0.1:{port}/?code=theirs&state=theirs")

    monkeypatch.setattr("webbrowser.open", lambda url: threading.Thread(target=misled, args=(url,)).start())
    began = time.monotonic()
    result = home.type("login", "--server", home.url, "--wait", "2")
    assert result.exit_code == FAILED and "no login within" in result.stderr
    assert time.monotonic() - began < 20 and not home.path.exists()


def test_login_says_what_is_missing(tmp_path: Path, server: Served, believing: Served) -> None:
    home = Home(tmp_path, server)
    without = home.type("login", "--server", home.url)
    assert without.exit_code == FAILED and "ask an admin for a token" in without.stderr
    assert home.type("login").exit_code == USAGE
    assert home.type("login", "--server", "roost.example.com").exit_code == USAGE
    assert home.type("login", "--server", "http://127.0.0.1:9").exit_code == NO_SERVER


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (("--oidc-issuer", "http://issuer.example.com", "--oidc-client-id", "x"), "oidc_issuer"),
        (("--oidc-issuer", "https://issuer.example.com"), "oidc_client_id"),
        (("--oidc-client-id", "x"), "oidc_issuer"),
    ],
)
def test_a_server_with_half_an_issuer_does_not_start(tmp_path: Path, message: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(root, ["server", "--data", str(tmp_path), "--listen", "127.0.0.1:0", *message])
    assert result.exit_code == USAGE and text in result.stderr
