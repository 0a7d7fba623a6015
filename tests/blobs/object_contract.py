"""What every store of objects promises. Its test file inherits from ObjectsContract and gives the fixture `objects`."""

import pytest

from roost.ports.objects import Objects

KEY = "logs/web/unit-tests/1"


class ObjectsContract:
    @pytest.fixture
    def objects(self) -> Objects:
        raise NotImplementedError

    def test_what_was_put_is_read_as_a_whole(self, objects: Objects) -> None:
        assert objects.get(KEY) is None
        assert objects.put(KEY, b"\x00\xffone") is None
        assert objects.get(KEY) == b"\x00\xffone"
        objects.put(KEY, b"")
        assert objects.get(KEY) == b""

    def test_the_same_key_is_replaced(self, objects: Objects) -> None:
        objects.put(KEY, b"a longer one")
        objects.put(KEY, b"short")
        assert objects.get(KEY) == b"short"
        assert objects.list("logs/web") == [KEY]

    def test_keys_below_a_folder_are_listed_in_order(self, objects: Objects) -> None:
        keys = ["logs/a/1", "logs/a/1/0-5", "logs/a/1/5-9", "logs/a/10", "logs/ab/1", "other/a/1"]
        for key in reversed(keys):
            objects.put(key, key.encode())
        assert objects.list("logs/a") == keys[:4]
        assert objects.list("logs/a/1") == keys[1:3]
        assert objects.list("logs") == keys[:5]
        assert objects.list("none") == []
        assert [objects.get(key) for key in keys] == [key.encode() for key in keys]

    def test_keys_are_listed_in_pages(self, objects: Objects) -> None:
        keys = ["logs/a-b/1", "logs/a/1", "logs/a/1-2", "logs/a/1/0-5", "logs/a/1/5-9", "logs/a/10", "logs/b"]
        for key in (*keys, "other/a"):
            objects.put(key, b"")
        assert objects.list("logs") == keys
        found: list[str] = []
        while page := objects.list("logs", found[-1] if found else "", 2):
            assert isinstance(page, list) and len(page) <= 2
            objects.delete(page[-1])  # the next page begins after it all the same
            found += page
        assert set(found) | {"logs/a/1/0-5", "logs/a/1/5-9"} == set(keys)
        assert len(found) == len(set(found))

    def test_what_is_deleted_is_gone_with_all_below_it(self, objects: Objects) -> None:
        for key in ("logs/a/1", "logs/a/1/0-5", "logs/a/10"):
            objects.put(key, b"x")
        assert objects.delete("logs/a/1") is None
        assert objects.delete("logs/a/1") is None
        assert objects.list("logs/a") == ["logs/a/10"]
        assert objects.get("logs/a/1/0-5") is None
        objects.put("logs/a/1/0-5", b"again")
        assert objects.get("logs/a/1/0-5") == b"again"
        objects.delete("logs")

    @pytest.mark.parametrize("key", ["", "/a", "a//b", "a/../b", "a/\n", "x" * 1_001])
    def test_a_key_that_leads_elsewhere_is_refused(self, objects: Objects, key: str) -> None:
        for call in (lambda: objects.put(key, b""), lambda: objects.get(key), lambda: objects.delete(key)):
            with pytest.raises(ValueError, match="key"):
                call()
