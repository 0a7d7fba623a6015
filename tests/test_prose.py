"""Docs: plain words, short sentences, links that lead somewhere, and generated pages that are as the code is.

tests/test_style.py looks for the refused words in source and tests.
"""

import re

import pytest

from tools import prose, reference
from tools.syntax import ROOT, Module

LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_docs_are_plain() -> None:
    complaints = list(prose.check_docs())
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("name", reference.PAGES)
def test_generated_page_is_current(name: str) -> None:
    stored = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert stored == reference.PAGES[name](), "run `make docs`"


def test_links_lead_somewhere() -> None:
    anchors = {page.resolve(): set(anchors_of(page.read_text(encoding="utf-8"))) for page in prose.pages()}
    broken = []
    for page in prose.pages():
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            to = (page.parent / path).resolve() if path else page.resolve()
            if not to.exists() or (anchor and anchor not in anchors.get(to, set())):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "\n" + "\n".join(broken)


def anchors_of(text: str) -> list[str]:
    """The anchors of a page: its headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Whoever_waits_is_informed.", "whoever"),
        ("It_is_gone,_too.", ",_too"),
        ("It_is_not_there_any_more.", "any_more"),
    ],
)
def test_refused_words_are_found(text: str, complaint: str) -> None:
    text, complaint = text.replace("_", " "), complaint.replace("_", " ")  # this file is checked as well
    assert complaint in prose.PATTERN.findall(text.lower())
    assert [found for _, found in refused_in(f"x = {text!r}")] == [complaint]
    assert [found for _, found in refused_in(f"x = {text.encode()!r}")] == [complaint]
    assert [found for _, found in refused_in(f"x = 1  # {text}")] == [complaint]


def refused_in(text: str) -> list[tuple[int, str]]:
    return list(prose.refused_in(Module(ROOT, text)))


def test_refused_names_of_functions_are_found() -> None:
    found = refused_in("def\ttest_who_waits():...\nclass\tTold:...\ndef\tok():...")
    assert [line for line, _ in found] == [1, 2]


def test_code_and_names_are_not_prose() -> None:
    assert prose.plain("see `told` in [page](told.md)") == "see CODE in page"
    assert list(prose.blocks_of("```\nnobody\n```\n")) == []
