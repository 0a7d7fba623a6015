"""What the reader of documents says of a wrong one, in our form: the path of the field and a sentence."""

import msgspec

from roost.model.errors import Invalid
from roost.model.secret import FromSecret


def told(error: msgspec.ValidationError, path: str, raw: dict[str, object]) -> Invalid:
    """msgspec's sentence and path (`... - at `$.count``) in our form."""
    text, _, where = str(error).partition(" - at `")
    field = where.rstrip("`").removeprefix("key` in `").removeprefix("$").removeprefix(".")
    if field.startswith("env[...]"):
        field = f"env.{_odd_variable(raw)}{field.removeprefix('env[...]')}"
        if text.startswith("Expected `str | object`"):
            text = "a variable is a text, or {secret: NAME}"
        elif text.startswith("Object missing"):
            field, text = f"{field}.secret", "the name of a secret is needed"
    if text.startswith("Object contains unknown field"):
        unknown = text.partition("`")[2].rstrip("`")
        field = f"{field}.{unknown}" if field else unknown
        text = "there is no such field"
    return Invalid(".".join(filter(None, (path, field))) or "$", text[:300])


def _odd_variable(raw: dict[str, object]) -> str:
    """Which variable of a document is none."""
    env = raw["env"]
    assert isinstance(env, dict), "msgspec has looked into it"
    for name, value in env.items():
        try:
            msgspec.convert({name: value}, dict[str, str | FromSecret])
        except msgspec.ValidationError:
            return f"{name:.60}"
    return "[...]"
