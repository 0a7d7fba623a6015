"""Names for addresses: "Hello, World" becomes "hello-world"."""

import re


def slug(text: str) -> str:
    """Lower case, with a dash in place of everything that is no letter or digit."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
