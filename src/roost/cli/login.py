"""roost login, logout, whoami: coming in as a person, with the identity that one's organisation gives."""

import os
import time
from pathlib import Path

import click

from roost.cli.outcome import Failure
from roost.cli.output import print_json, print_table, say
from roost.cli.session import connect, json_option


@click.command(
    epilog="""\b
Examples:
  roost login --server https://roost.example.com
  roost login                               again, at the server of the last time
  roost login --server https://roost.example.com --no-browser
\b
Next: `roost whoami`. The login is kept in ~/.config/roost/client.toml and renewed by itself; `roost logout` forgets it.
"""
)
@click.option("--server", "url", envvar="ROOST_URL", metavar="URL", help="Where the server is. [default: as last time]")
@click.option("--no-browser", is_flag=True, help="Only print the URL, for a browser that you open yourself.")
@click.option("--wait", "wait_s", type=click.IntRange(1, 3_600), default=300, show_default=True, metavar="SECONDS",
              help="For how long to wait for the browser.")  # fmt: skip
@json_option
def login(url: str | None, no_browser: bool, wait_s: int, as_json: bool) -> None:
    """Log in with your organisation's identity, by way of your browser.

    The server says which issuer it believes. Your browser goes there and comes back to a port of this machine.
    """
    from roost.client import Client  # noqa: PLC0415  (`--help` needs no connection)
    from roost.client.config import authority_of  # noqa: PLC0415
    from roost.client.login import log_in, write_login  # noqa: PLC0415

    path = _own_file()
    url = (url or _last_url(path)).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not like https://HOST:PORT", param_hint="--server")
    ca = authority_of(os.environ.get("ROOST_CA", ""))
    with Client(url, ca=ca) as client:
        told = client.login()
    identity = log_in(told.issuer, told.client_id, _quiet if no_browser else _open, wait_s)
    write_login(path, url, identity, ca)
    with Client(url, identity.id_token, ca) as client:
        who = client.whoami()
    if os.environ.get("ROOST_CONFIG"):
        say(f"$ROOST_CONFIG goes before this login; unset it to use {path}")
    if as_json:
        print_json(who)
    else:
        say(f"you are {who.name}; {_roles(who.roles)}")


@click.command(
    epilog="""\b
Examples:
  roost logout
\b
Next: `roost login` brings you back.
"""
)
@json_option
def logout(as_json: bool) -> None:
    """Forget the login that is kept on this machine."""
    from roost.client.login import forget_login  # noqa: PLC0415

    path = _own_file()
    if not forget_login(path):
        raise Failure(f"there is no login in {path}")
    if as_json:
        print_json({"file": str(path)})
    else:
        say(f"{path} is gone")


@click.command(
    epilog="""\b
Examples:
  roost whoami
  roost whoami --json
\b
Next: docs/access.md says what each role may do; an admin changes roles with `roost members` and `roost tokens`.
"""
)
@json_option
def whoami(as_json: bool) -> None:
    """Say who you are to the server, and what you may do there."""
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
        say("you have no role yet; an admin gives one with `roost members set`")


def _own_file() -> Path:
    from roost.client.config import user_config_path  # noqa: PLC0415

    return user_config_path(os.environ)


def _last_url(path: Path) -> str:
    import tomllib  # noqa: PLC0415

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("url")
    except (OSError, ValueError):
        found = None
    if not isinstance(found, str):
        raise click.UsageError("say where the server is: --server URL")
    return found


def _open(url: str) -> None:
    import webbrowser  # noqa: PLC0415

    _quiet(url)
    webbrowser.open(url)


def _quiet(url: str) -> None:
    say("open this page and log in:")
    click.echo(url, err=True)


def _roles(roles: dict[str, str]) -> str:
    if not roles:
        return "you have no role yet; an admin gives one with `roost members set`"
    return ", ".join(f"{role} {'everywhere' if place == '*' else 'in ' + place}" for place, role in roles.items())
