"""roost login, logout, whoami: log in with an OpenID identity."""

import os
import time
from pathlib import Path

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.common.output import echo_err, print_json, print_result, print_table
from roost.cli.common.session import connect, json_option
from roost.client import Client
from roost.client.config import authority_of, user_config_path


@click.command()
@click.option(
    "--server", "url", envvar="ROOST_URL", metavar="URL", help="URL of the server. [default: of the last login]"
)
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option("--wait", "wait_s", type=click.IntRange(1, 3_600), default=300, show_default=True, metavar="SECONDS",
              help="Time limit for the browser.")  # fmt: skip
@json_option
def login(url: str | None, no_browser: bool, wait_s: int, as_json: bool) -> None:
    """Log in with your organisation's identity, in your browser.

    The server names its OpenID issuer. Your browser opens it and returns to a local port.

    Examples:
      roost login --server https://roost.example.com
      roost login                               again, at the server of the last login
      roost login --server https://roost.example.com --no-browser

    Next: `roost whoami`. The login is stored in ~/.config/roost/client.toml and renewed; `roost logout` removes it.
    """
    from roost.client.login import log_in, write_login

    path = _own_file()
    url = (url or _last_url(path)).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not like https://HOST:PORT", param_hint="--server")
    ca = authority_of(os.environ.get("ROOST_CA", ""))
    with Client(url, ca=ca) as client:
        answer = client.login()
    identity = log_in(answer.issuer, answer.client_id, _quiet if no_browser else _open, wait_s)
    write_login(path, url, identity, ca)
    with Client(url, identity.id_token, ca) as client:
        who = client.whoami()
    if os.environ.get("ROOST_CONFIG"):
        echo_err(f"$ROOST_CONFIG takes precedence over this login; unset it to use {path}")
    print_result(who, as_json, f"you are {who.name}; {_roles(who.roles)}")


@click.command()
@json_option
def logout(as_json: bool) -> None:
    """Remove the login from this machine.

    Examples:
      roost logout

    Next: `roost login`.
    """
    from roost.client.login import forget_login

    path = _own_file()
    if not forget_login(path):
        raise Failure(f"there is no login in {path}")
    print_result({"file": str(path)}, as_json, f"{path} is deleted")


@click.command()
@json_option
def whoami(as_json: bool) -> None:
    """Show your principal and your roles.

    Examples:
      roost whoami
      roost whoami --json

    Next: docs/guides/access.md lists the roles; an admin changes roles with `roost members` and `roost tokens`.
    """
    with connect() as client:
        who = client.whoami()
    if as_json:
        print_json(who)
        return
    ends = time.strftime(", until %Y-%m-%d %H:%M", time.localtime(who.expires_ms / 1_000)) if who.expires_ms else ""
    click.echo(f"{who.name}{ends}")
    print_table(
        ("PROJECT", "ROLE"), [("everywhere" if place == "*" else place, role) for place, role in who.roles.items()]
    )
    if not who.roles:
        echo_err("you have no role yet; an admin gives one with `roost members set`")


def _own_file() -> Path:
    return user_config_path(os.environ)


def _last_url(path: Path) -> str:
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("url")
    except (OSError, ValueError):
        found = None
    if not isinstance(found, str):
        raise click.UsageError("there is no earlier login: give --server URL")
    return found


def _open(url: str) -> None:
    import webbrowser

    _quiet(url)
    webbrowser.open(url)


def _quiet(url: str) -> None:
    echo_err("open this page and log in:")
    click.echo(url, err=True)


def _roles(roles: dict[str, str]) -> str:
    if not roles:
        return "you have no role yet; an admin gives one with `roost members set`"
    return ", ".join(f"{role} {'everywhere' if place == '*' else 'in ' + place}" for place, role in roles.items())
