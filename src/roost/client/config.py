"""Where the server is and how to authenticate: the environment, the user's own file, or a server of this machine."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from roost.client.errors import NotConfigured

NOT_CONFIGURED = (
    "no server configured: start one with `roost up`, or export ROOST_CONFIG=DIR/client.toml, or ROOST_URL and"
    " ROOST_TOKEN"
)
TWO_LINES = 'it has two lines: url = "..." and token = "..."'


class Config(NamedTuple):
    url: str
    token: str
    ca: str = ""  # PEM of the CA that vouches for the server; empty: those that this system knows


def find_config(environ: Mapping[str, str] | None = None) -> Config:
    """$ROOST_CONFIG, else $ROOST_URL and $ROOST_TOKEN, else the user's own file, else that of a server started here.

    $ROOST_TOKEN replaces the token of a file. A file that is named or present but wrong is an error, never skipped.
    """
    environ = os.environ if environ is None else environ
    named, url, token = environ.get("ROOST_CONFIG"), environ.get("ROOST_URL"), environ.get("ROOST_TOKEN", "")
    if url and not named:
        ca = authority_of(environ.get("ROOST_CA", ""))
        return Config(_checked(url, "$ROOST_URL"), token, ca)
    if named:
        found = read_config(Path(named), token)
        if url and _checked(url, "$ROOST_URL") != found.url:
            raise NotConfigured(
                f"$ROOST_URL is {url}, and {named} of $ROOST_CONFIG has {found.url}", "unset one of them"
            )
        return found
    for path in (user_config_path(environ), data_home(environ) / "client.toml"):
        if path.is_file():
            return read_config(path, token)
    raise NotConfigured(NOT_CONFIGURED)


def read_config(path: Path, own_token: str = "") -> Config:
    """A client.toml: `url` and `token`, or a login that is renewed when it ends; and `ca`, PEM or a file of it.

    `own_token` is used in place of its token or login.
    """
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotConfigured(f"{path} is not there", "start the server that writes it: `roost up`") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NotConfigured(f"{path} cannot be read: {error}", TWO_LINES) from None
    url, token, answer = content.get("url"), content.get("token", ""), content.get("ca", "")
    if not isinstance(url, str) or not isinstance(token, str) or not isinstance(answer, str):
        raise NotConfigured(f"{path} has no url", TWO_LINES)
    ca = authority_of(answer or os.environ.get("ROOST_CA", ""), path.parent, str(path) if answer else "$ROOST_CA")
    if isinstance(content.get("login"), dict) and not own_token:
        from roost.client.login import renewed

        return renewed(path, _checked(url, str(path)), content["login"], ca)
    return Config(_checked(url, str(path)), own_token or token, ca)


def write_config(path: Path, config: Config) -> None:
    """Write a client.toml with mode 0600. A concurrent reader sees the old or the new one."""
    write_private(path, {"url": config.url, "token": config.token} | ({"ca": config.ca} if config.ca else {}))


def write_private(path: Path, fields: Mapping[str, str], **tables: Mapping[str, str | int]) -> None:
    """Write a TOML file that only its owner can read: some fields, then tables."""
    text = _toml(fields) + "".join(f"\n[{name}]\n{_toml(table)}" for name, table in tables.items())
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    except OSError:
        draft.unlink()
        raise


def user_config_path(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "~"), ".config")
    return Path(base).expanduser() / "roost" / "client.toml"


def data_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The default data directory of a server: ~/.local/share/roost, or where XDG says."""
    base = environ.get("XDG_DATA_HOME") or os.path.join(environ.get("HOME", "~"), ".local", "share")
    return Path(base).expanduser() / "roost"


def authority_of(report: str, folder: Path = Path(), where: str = "$ROOST_CA") -> str:
    if not report or "-----BEGIN CERTIFICATE-----" in report:
        return report
    try:
        text = (folder / report).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise NotConfigured(f"{where} names the CA's file {report}, which cannot be read: {error}") from None
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise NotConfigured(f"{where} names the CA's file {report}, which holds no certificate in PEM")
    return text


def _checked(url: str, where: str) -> str:
    checked = []
    for part in url.split(","):
        scheme, separator, rest = part.strip().partition("://")
        if scheme not in ("http", "https") or not separator or not rest.strip("/"):
            raise NotConfigured(f"{where} says {part!r}, which is not like http://HOST:PORT")
        checked.append(part.strip().rstrip("/"))
    return ",".join(checked)


def _toml(fields: Mapping[str, str] | Mapping[str, str | int]) -> str:
    return "".join(
        f"{name} = {_quoted(value) if isinstance(value, str) else value}\n" for name, value in fields.items()
    )


def _quoted(text: str) -> str:
    """A TOML basic string; of PEM, which has lines and nothing to escape, one that can be read."""
    if text.startswith("-----BEGIN ") and text.replace("\n", "").isprintable() and not set(text) & {'"', "\\"}:
        return f'"""\n{text}"""'
    return json.dumps(text, ensure_ascii=False).replace(
        "\x7f", "\\u007f"
    )  # what JSON takes in a text and TOML does not
