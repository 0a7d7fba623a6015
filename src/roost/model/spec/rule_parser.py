"""What a rule speaks of: its words, and which keys of a map it names. Where that is not plain, it is all of the map."""

import re
from functools import lru_cache
from typing import NamedTuple

TEXT, WORD, MARK = "text", "word", "mark"
MACROS = ("all", "exists", "exists_one", "map", "filter")
BEFORE_A_KEY = ("(", "&", "|", ",", "?", ":", "[")  # after others, `'a' in labels` may be part of something larger
_TOKEN = re.compile(
    r"""(?P<raw>(?:[rR][bB]?|[bB][rR])(?:'''.*?'''|\"\"\".*?\"\"\"|'[^'\n]*'|"[^"\n]*"))
    |(?P<text>[bB]?(?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>\d\w*)
    |(?P<comment>//[^\n]*)
    |(?P<mark>\S)""",
    re.VERBOSE | re.DOTALL,
)


class RuleToken(NamedTuple):
    """A piece of a rule. Of a plain text, `value` is what stands between the quotes; other texts keep theirs."""

    kind: str
    value: str


class FieldReference(NamedTuple):
    """None: the whole of it."""

    word: str
    keys: tuple[str, ...] | None


@lru_cache(maxsize=4096)
def referenced_fields(rule: str) -> tuple[FieldReference, ...]:
    """All words of a rule that are not names of fields, in order of the alphabet."""
    pieces = tokens(rule)
    found: dict[str, list[str] | None] = {}
    for index, piece in enumerate(pieces):
        if piece.kind == WORD and not _is_field(pieces, index):
            key = _key(pieces, index)
            existing = found.setdefault(piece.value, [])
            if key is None or existing is None:
                found[piece.value] = None
            else:
                existing.append(key)
    return tuple(
        FieldReference(word, None if keys is None else tuple(sorted(set(keys)))) for word, keys in sorted(found.items())
    )


def tokens(rule: str) -> list[RuleToken]:
    pieces = []
    for match in _TOKEN.finditer(rule):
        kind, value = match.lastgroup, match[0]
        if kind == "text" and value[0] in "'\"" and value[:3] not in ("'''", '"""') and "\\" not in value:
            pieces.append(RuleToken(TEXT, value[1:-1]))
        elif kind == "word":
            pieces.append(RuleToken(WORD, value))
        elif kind != "comment":
            pieces.append(RuleToken(MARK, value))
    return pieces


def calls(pieces: list[RuleToken], names: tuple[str, ...]) -> list[int]:
    return [
        index
        for index, piece in enumerate(pieces[:-1])
        if piece.kind == WORD and piece.value in names and pieces[index + 1].value == "("
    ]


def _is_field(pieces: list[RuleToken], index: int) -> bool:
    """Whether a word comes after the dot of something; a dot after nothing begins a name."""
    if index < 2 or pieces[index - 1] != RuleToken(MARK, "."):
        return False
    before = pieces[index - 2]
    return before.kind in (TEXT, WORD) or before.value in (")", "]", "}", "`") or before.value[-1] in "'\"`"


def _key(pieces: list[RuleToken], index: int) -> str | None:
    """The one key of a map that is named here."""
    after = [*pieces[index + 1 : index + 4], RuleToken(MARK, ""), RuleToken(MARK, ""), RuleToken(MARK, "")]
    if after[0] == RuleToken(MARK, "."):
        return after[1].value if after[1].kind == WORD and after[2] != RuleToken(MARK, "(") else None
    if after[0] == RuleToken(MARK, "["):
        return after[1].value if after[1].kind == TEXT and after[2] == RuleToken(MARK, "]") else None
    before = [RuleToken(MARK, "("), *pieces[max(0, index - 3) : index]][-3:]
    if len(before) == 3 and before[2] == RuleToken(WORD, "in") and before[1].kind == TEXT:
        return before[1].value if before[0].kind == MARK and before[0].value in BEFORE_A_KEY else None
    return None
