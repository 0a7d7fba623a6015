"""Check the prose: refused words, sentence length and line width in the docs; refused words in source and tests."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tools.syntax import ROOT, Module, modules

SENTENCE_WORDS_MAX = 25  # what a reader at night takes in at once
LINE_COLUMNS_MAX = 100  # what fits beside another window
UNBROKEN_COLUMNS_MAX = 160  # rows of tables and code, which cannot be wrapped

# Pronouns that hide the subject, and phrases with a plain word of the field. docs/glossary.md has the words to use.
# `_` is a blank here: this file is checked as well.
_REFUSED = {
    "test_who": "name the subject",
    "whoever": "name the subject",
    "whomever": "name the subject",
    "whom": "name the subject",
    "somebody": "name the subject",
    "nobody": "name the subject",
    "anybody": "name the subject",
    "everybody": "name the subject",
    "any_more": "no longer",
    "for_ever": "forever, or say how long",
    "what_is_over": "finished workloads",
    "what_waits": "pending instances",
    "who_waits": "pending instances",
    "in_words": "a message",
    "told": "reported, sent, shown",
    "said": "reported, set",
    "unless_told": "by default",
    ",_too": "also",
}
REFUSED = {phrase.replace("_", " "): use for phrase, use in _REFUSED.items()}
PHRASES = "|".join(re.escape(phrase) for phrase in REFUSED if phrase[0].isalpha())
PATTERN = re.compile(rf"(?<![\w`/.-])(?:{PHRASES})(?![\w`(=/]|\.\w)|, too(?=[.;:,)]|$)", re.MULTILINE)


def pages() -> list[Path]:
    """Every page of prose."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def check_docs() -> Iterator[str]:
    """Complaints about the docs, each with its file and line."""
    for page in pages():
        where = page.relative_to(ROOT)
        text = page.read_text(encoding="utf-8")
        for number, line, fixed in lines_of(text):
            limit = UNBROKEN_COLUMNS_MAX if fixed else LINE_COLUMNS_MAX
            if len(line) > limit:
                yield f"{where}:{number}: {len(line)} columns, at most {limit}"
        for number, block in blocks_of(text):
            for found in PATTERN.finditer(block.lower()):
                yield f"{where}:{number}: '{found.group()}': {REFUSED[found.group()]}"
            for sentence in sentences_of(block):
                if (message := len(sentence.split())) > SENTENCE_WORDS_MAX:
                    yield f"{where}:{number}: a sentence of {message} words: {sentence[:60]}..."


def lines_of(text: str) -> Iterator[tuple[int, str, bool]]:
    """Number and text of every line, and whether it cannot be wrapped: code, or a row of a table."""
    code = False
    for number, line in enumerate(text.splitlines(), start=1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        yield number, line, code or fence or line.startswith(("|", "    "))


def blocks_of(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items, headings and cells of tables, without code."""
    start = 0
    lines: list[str] = []
    for number, line, fixed in lines_of(text):
        begins = re.match(r"\s*(?:[-*] |\d+\. |#+ |> |\*\*)", line)
        if lines and (fixed or begins or not line.strip() or lines[-1].startswith("#")):
            yield start, plain(" ".join(lines))
            lines = []
        if line.startswith("|"):
            yield from ((number, plain(cell)) for cell in line.replace(r"\|", " or ").split("|") if cell.strip())
        elif not fixed and line.strip():
            start = start if lines else number
            lines.append(line.strip())
    if lines:
        yield start, plain(" ".join(lines))


def plain(text: str) -> str:
    """Prose without markup: a span of code is one word, a link is its label."""
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"^(?:[-*] |\d+\. |#+ )", "", text.strip()).replace("**", "").strip()


def sentences_of(block: str) -> list[str]:
    """Sentences end with a full stop, a question mark or an exclamation mark before a blank."""
    return re.split(r"(?<=[.!?])[)\"']?\s+", block)


def no_refused_words(module: Module) -> Iterator[str]:
    """Refused words in a module, each with its file and line."""
    for number, found in refused_in(module):
        yield f"{module.place(number)}: '{found}': {REFUSED[found]}"


def refused_in(module: Module) -> Iterator[tuple[int, str]]:
    """Refused words in the comments, docstrings, texts and function names of a module."""
    if PATTERN.search(module.text.lower()):  # few modules: to find the comments takes longer than all the rest
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT:
                yield from ((token.start[0], found) for found in PATTERN.findall(token.string.lower()))
    for node in module.nodes(ast.Constant):
        if isinstance(node.value, str | bytes):
            value = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            # One word alone is data, such as the name of a node.
            if " " in value:
                yield from ((node.lineno, found) for found in PATTERN.findall(value.lower()))
    for node in module.nodes(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        yield from ((node.lineno, found) for found in PATTERN.findall(node.name.lower().replace("_", " ")))


if __name__ == "__main__":
    complaints = [*check_docs(), *(found for module in modules() for found in no_refused_words(module))]
    print("\n".join(complaints))
    sys.exit(bool(complaints))
