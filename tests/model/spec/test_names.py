"""Names and one-line texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.model.errors import Invalid
from roost.model.spec.names import check_name, check_node_name, check_text


@pytest.mark.parametrize("name", ["web", "web-1", "WEB_2", "a", "0", "x" * 63])
def test_names(name: str) -> None:
    check_name(name, "name")
    check_node_name(name, "node")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "a name cannot be empty"),
        ("x" * 64, "a name may have 63 characters; this one has 64"),
        ("web.1", "a name is made of letters, digits, '-' and '_', beginning and ending with a letter or digit"),
        ("-web", "beginning and ending"),
        ("web_", "beginning and ending"),
        ("a/b", "not 'a/b'"),
        ("web\n", r"not 'web\n'"),
        ("wéb", "not 'wéb'"),
        ("٣", "not '٣'"),
    ],
)
def test_names_that_are_refused(name: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_name(name, "name")
    assert message in refused.value.message
    assert refused.value.path == "name"


@pytest.mark.parametrize("name", ["build-7.example.com", "10.0.0.1"])
def test_a_node_may_be_named_like_a_host(name: str) -> None:
    check_node_name(name, "node")


@pytest.mark.parametrize("name", ["", ".", "a..", "..", "a/..", "a b"])
def test_node_names_that_are_refused(name: str) -> None:
    with pytest.raises(Invalid):
        check_node_name(name, "node")


@given(st.text(max_size=300))
def test_a_name_that_passes_is_safe_in_keys_paths_and_addresses(text: str) -> None:
    try:
        check_name(text, "name")
    except Invalid:
        return
    assert text.isascii() and 0 < len(text) <= 63
    assert not set(text) & set("/.\0 \n%?#")


@given(st.text(max_size=300))
def test_text_is_one_line(text: str) -> None:
    try:
        check_text(text, "label")
    except Invalid:
        return
    assert len(text.splitlines()) <= 1 and len(text) <= 256
    text.encode()
