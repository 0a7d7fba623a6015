"""SQL statements that are longer than a line, one file each, one folder per store."""

import importlib.resources
from functools import cache


@cache
def statement(store: str, name: str) -> str:
    """The text of <store>/<name>.sql."""
    return (importlib.resources.files(__package__) / store / f"{name}.sql").read_text(encoding="utf-8")
