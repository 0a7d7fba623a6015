"""Where the server is and how to be let in: $ROOST_CONFIG, or $ROOST_URL and $ROOST_TOKEN, or the user's own file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from roost.client.errors import NotConfigured

NOT_CONFIGURED = "no server configured: start one with `roost up`, then export ROOST_CONFIG=DIR/client.toml"


class Config(NamedTuple):
    """What a client needs to know."""

    url: str
    token: str


def find_config(environ: Mapping[str, str] | None = None) -> Config:
    """The first of the three places that says something; one that is named but wrong is an error, never skipped."""
    environ = os.environ if environ is None else environ
    named = environ.get("ROOST_CONFIG")
    if named:
        return read_config(Path(named))
    url = environ.get("ROOST_URL")
    if url:
        return Config(_checked(url, "$ROOST_URL"), environ.get("ROOST_TOKEN", ""))
    own = user_config_path(environ)
    if own.is_file():
        return read_config(own)
    raise NotConfigured(NOT_CONFIGURED)


def read_config(path: Path) -> Config:
    """A client.toml: `url` and `token`."""
    import tomllib  # noqa: PLC0415  (only where a file is used: every command starts faster without it)

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotConfigured(f"{path} is not there", "start the server that writes it: `roost up`") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NotConfigured(
            f"{path} cannot be read: {error}", 'it has two lines: url = "..." and token = "..."'
        ) from None
    url, token = content.get("url"), content.get("token", "")
    if not isinstance(url, str) or not isinstance(token, str):
        raise NotConfigured(f"{path} has no url", 'it has two lines: url = "..." and token = "..."')
    return Config(_checked(url, str(path)), token)


def write_config(path: Path, config: Config) -> None:
    """Leave a client.toml that only its owner can read. Whoever reads it meanwhile sees the old or the new one."""
    text = f"url = {_quoted(config.url)}\ntoken = {_quoted(config.token)}\n"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)


def user_config_path(environ: Mapping[str, str]) -> Path:
    """~/.config/roost/client.toml, or where XDG says."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "~"), ".config")
    return Path(base).expanduser() / "roost" / "client.toml"


def _checked(url: str, where: str) -> str:
    scheme, separator, rest = url.partition("://")
    if scheme not in ("http", "https") or not separator or not rest.strip("/"):
        raise NotConfigured(f"{where} says {url!r}, which is not like http://HOST:PORT")
    return url.rstrip("/")


def _quoted(text: str) -> str:
    """A TOML basic string."""
    escaped = "".join(f"\\u{ord(each):04x}" if each in '"\\' or not each.isprintable() else each for each in text)
    return f'"{escaped}"'
