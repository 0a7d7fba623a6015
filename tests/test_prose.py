"""Docs: plain words, short sentences, links that lead somewhere, and generated pages that are as the code is."""

import re

import pytest

from tools import prose, reference

LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_docs_are_plain() -> None:
    complaints = list(prose.check_docs())
    assert not complaints, "\n" + "\n".join(complaints)


def test_source_has_no_new_refused_words() -> None:
    complaints = list(prose.check_source())
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("name", reference.PAGES)
def test_generated_page_is_current(name: str) -> None:
    stored = (prose.ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
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
                broken.append(f"{page.relative_to(prose.ROOT)}: {target}")
    assert not broken, "\n" + "\n".join(broken)


def anchors_of(text: str) -> list[str]:
    """The anchors of a page: its headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Whoever waits is told so.", "whoever"),
        ("It is gone, too.", ", too"),
        ("It is not there any more.", "any more"),
    ],
)
def test_refused_words_are_found(text: str, complaint: str) -> None:
    assert complaint in prose.PATTERN.findall(text.lower())


def test_code_and_names_are_not_prose() -> None:
    assert prose.plain("see `told` in [page](told.md)") == "see CODE in page"
    assert list(prose.blocks_of("```\nnobody\n```\n")) == []
