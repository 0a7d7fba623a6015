"""roost login, logout, whoami: log in with an OpenID identity."""

import os
from pathlib import Path

import click

from roost.cli.common.exit_codes import Failure
from roost.cli.common.format import day_and_minute
from roost.cli.common.output import Output, echo_err, print_table
from roost.cli.common.session import client_output, json_output
from roost.client import Client
from roost.client.config import authority_of, user_config_path

NO_ROLE = "you have no role yet; an admin gives one with `roost members set`"


@click.command()
@click.option(
    "--server", "url", envvar="ROOST_URL", metavar="URL", help="URL of the server. [default: of the last login]"
)
@click.option("--no-browser", is_flag=True, help="Only print the URL.")
@click.option("--wait", "wait_s", type=click.IntRange(1, 3_600), default=300, show_default=True, metavar="SECONDS",
              help="Time limit for the browser.")  # fmt: skip
@json_output
def login(url: str | None, no_browser: bool, wait_s: int) -> Output:
    """Log in with your organisation's identity, in your browser.

    The server names its OpenID issuer. Your browser opens it and returns to a local port.

    Examples:
      roost login --server https://roost.example.com
      roost login                               again, at the server of the last login
      roost login --server https://roost.example.com --no-browser

    Next: `roost whoami`. The login is stored in ~/.config/roost/client.toml and renewed; `roost logout` removes it.
    """
    from roost.client.login import log_in, write_login

    path = user_config_path(os.environ)
    url = (url or _last_url(path)).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not like https://HOST:PORT", param_hint="--server")
    ca = authority_of(os.environ.get("ROOST_CA", ""))
    with Client(url, ca=ca) as client:
        answer = client.login()

    def show(page: str) -> None:
        echo_err("open this page and log in:")
        click.echo(page, err=True)
        if not no_browser:
            import webbrowser

            webbrowser.open(page)

    identity = log_in(answer.issuer, answer.client_id, show, wait_s)
    write_login(path, url, identity, ca)
    with Client(url, identity.id_token, ca) as client:
        who = client.whoami()
    for name in ("ROOST_CONFIG", "ROOST_URL", "ROOST_TOKEN"):
        if os.environ.get(name):
            echo_err(f"${name} takes precedence over this login; unset it to use {path}")
    roles = ", ".join(f"{role} {'everywhere' if place == '*' else f'in {place}'}" for place, role in who.roles.items())
    return Output(who, f"you are {who.name}; {roles or NO_ROLE}")


@click.command()
@json_output
def logout() -> Output:
    """Remove the login from this machine.

    Examples:
      roost logout

    Next: `roost login`.
    """
    from roost.client.login import forget_login

    path = user_config_path(os.environ)
    if not forget_login(path):
        raise Failure(f"there is no login in {path}")
    return Output({"file": str(path)}, f"{path} is deleted")


@click.command()
@client_output
def whoami(client: Client) -> Output:
    """Show your principal and your roles.

    Examples:
      roost whoami
      roost whoami --json

    Next: an admin changes roles with `roost members` and `roost tokens`.
    """
    who = client.whoami()

    def show() -> None:
        click.echo(who.name + (f", until {day_and_minute(who.expires_ms)}" if who.expires_ms else ""))
        roles = [("everywhere" if place == "*" else place, role) for place, role in who.roles.items()]
        print_table(("PROJECT", "ROLE"), roles)
        if not roles:
            echo_err(NO_ROLE)

    return Output(who, show)


def _last_url(path: Path) -> str:
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8")).get("url")
    except (OSError, ValueError):
        found = None
    if not isinstance(found, str):
        raise click.UsageError("there is no earlier login: give --server URL")
    return found
