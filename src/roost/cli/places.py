"""Where things are kept on this machine, by the rules of XDG."""

import os
from pathlib import Path


def data_home() -> Path:
    """~/.local/share/roost, or where XDG says."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "roost"
