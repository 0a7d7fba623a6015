"""The cache of a document: what it may be, and the key of a run."""

from typing import Any

import pytest

from roost.model.errors import Invalid
from roost.model.spec.document import cache_in, check_document, encode_document, read_document
from roost.model.spec.files import cache_key

GOOD = {"key": "pip-{arch}-{hash:requirements*.txt}", "paths": [".cache/pip"], "restore": ["pip-{arch}-"]}


def test_a_cache_is_found_in_a_stored_document() -> None:
    document = read_document({"name": "a", "command": "x", "cache": GOOD})
    check_document(document)
    assert cache_in(encode_document(document)) == document.cache is not None
    assert cache_in(encode_document(read_document({"name": "a", "command": "x"}))) is None


@pytest.mark.parametrize(
    ("cache", "path"),
    [
        ({**GOOD, "key": ""}, "cache.key"),
        ({**GOOD, "key": "a\nb"}, "cache.key"),
        ({**GOOD, "key": "x" * 251}, "cache.key"),
        ({**GOOD, "key": "${{ hash }}"}, "cache.key"),
        ({**GOOD, "key": "{hash:}"}, "cache.key"),
        ({**GOOD, "key": "{hash:../x}"}, "cache.key"),
        ({**GOOD, "key": "{secret:x}"}, "cache.key"),
        ({**GOOD, "restore": ["a", "{"]}, "cache.restore[1]"),
        ({**GOOD, "restore": ["a"] * 11}, "cache.restore"),
        ({**GOOD, "paths": []}, "cache.paths"),
        ({**GOOD, "paths": ["a", "/b"]}, "cache.paths[1]"),
        ({"key": "a"}, "cache.paths"),
        ({**GOOD, "path": "a"}, "cache.path"),
    ],
)
def test_a_wrong_cache_is_named(cache: Any, path: str) -> None:
    with pytest.raises(Invalid) as error:
        check_document(read_document({"name": "a", "command": "x", "cache": cache}))
    assert error.value.path == path


def test_a_service_has_no_cache() -> None:
    with pytest.raises(Invalid, match="a cache is for jobs"):
        check_document(read_document({"name": "a", "kind": "service", "command": "x", "cache": GOOD}))


def test_the_key_of_a_run() -> None:
    def made(text: str, **env: str) -> str:
        return cache_key(text, lambda pattern: {"*.txt": "0123456789abcdef" * 4}.get(pattern, ""), env, "arm64")

    assert made("pip-{arch}-{env:PYTHON}-{hash:*.txt}", PYTHON="3.11") == "pip-arm64-3.11-0123456789abcdef"
    assert made("{hash:none}{env:NONE}") == "none"
    for value in ("x" * 251, "a\nb"):
        with pytest.raises(Invalid):
            made("{env:X}", X=value)
