"""Files over the REST API: contents by digest, in packs and pieces; sets; ranges; and nothing of other projects."""

from typing import Any

import httpx
import pytest
import zstandard

from roost.files.manifest import Entry, FileEntry, FolderEntry, LinkEntry, Manifest, encode
from roost.files.pack import PackReader, pack_contents
from roost.ports.blobs import CHUNK_BYTES_MAX, BlobsUnavailable, digest_of
from roost.server.auth.principal import ALL, Principal
from roost.server.engine.role import Following
from roost.server.files import sent
from roost.server.http.api.answers import TRANSFERS_MAX
from tests.security.callers import caller
from tests.server.inprocess_server import InprocessServer, in_role, inprocess_server, over_http

FILES = "/v1/projects/default/files"
BLOBS = "/v1/projects/default/blobs"
ONE, TWO = b"one", b"two\n" * 100
LARGE = bytes(range(256)) * (3 << 12)  # 3 MiB


def file(path: str, data: bytes, mode: int = 0o644) -> FileEntry:
    return FileEntry(path, mode, len(data), digest_of(data))


def manifest(*entries: Entry) -> bytes:
    return encode(Manifest(entries))


BOTH = manifest(FolderEntry("a", 0o755), file("a/one", ONE), LinkEntry("a/same", "one"), file("two", TWO))


async def send_pack(made: InprocessServer, *contents: bytes) -> httpx.Response:
    pack = pack_contents([(digest_of(data), data) for data in contents])
    return await made.client.post(f"{FILES}/pack", content=pack)


async def put(made: InprocessServer, data: bytes, piece: bytes, offset: int = 0, **more: Any) -> httpx.Response:
    query = {"size": len(data), "offset": offset, **more}
    return await made.client.put(f"{BLOBS}/{digest_of(data)}", content=piece, params=query)


async def missing(made: InprocessServer, *contents: bytes) -> list[str]:
    answer = await made.post(f"{FILES}/missing", {"digests": [digest_of(data) for data in contents]})
    return answer["missing"]


async def test_contents_are_sent_in_a_pack_and_become_a_set() -> None:
    async with inprocess_server() as made:
        assert await missing(made, ONE, TWO) == [digest_of(ONE), digest_of(TWO)]
        assert (await send_pack(made, ONE, TWO)).status_code == 204
        assert await missing(made, ONE, TWO) == []
        answer = await made.client.post(FILES, content=BOTH)
        assert answer.status_code == 201, answer.text
        assert answer.json() == {"digest": digest_of(BOTH), "files": 2, "size": len(ONE) + len(TWO)}
        again = await made.client.post(FILES, params={"digest": digest_of(BOTH)})
        assert again.json() == answer.json()
        found = await made.client.get(f"{FILES}/{digest_of(BOTH)}")
        assert (found.content, found.headers["content-type"]) == (BOTH, "application/json")


async def test_contents_come_back_as_a_pack() -> None:
    async with inprocess_server() as made:
        await send_pack(made, ONE, TWO)
        digests = [digest_of(TWO), digest_of(ONE)]
        answer = await made.client.post(f"{FILES}/contents", json={"digests": digests})
        assert answer.headers["content-type"] == "application/zstd"
        reader = PackReader({digest_of(ONE): len(ONE), digest_of(TWO): len(TWO)})
        assert list(reader.feed(answer.content)) == [(digest_of(TWO), TWO), (digest_of(ONE), ONE)]
        reader.finish()
        unknown = await made.post(f"{FILES}/contents", {"digests": [digest_of(ONE), digest_of(b"x")]}, 404)
        assert unknown["params"] == {"digest": digest_of(b"x")}


async def test_a_pack_of_contents_ends_early_and_a_large_one_is_refused() -> None:
    async with inprocess_server() as made:
        large = [bytes([number]) * (5 << 20) for number in (1, 2)]
        blobs = made.files.root.project("default")
        for data in large:
            await blobs.put([(digest_of(data), data)])
        answer = await made.client.post(f"{FILES}/contents", json={"digests": [digest_of(data) for data in large]})
        reader = PackReader({digest_of(large[0]): 5 << 20})
        assert [digest for digest, _ in reader.feed(answer.content)] == [digest_of(large[0])]
        reader.finish()


async def test_a_large_blob_is_sent_in_pieces_and_goes_on_after_an_interruption() -> None:
    async with inprocess_server() as made:
        assert (await put(made, LARGE, LARGE[:1000])).json() == {"offset": 1000, "stored": False}
        assert (await put(made, LARGE, b"")).json() == {"offset": 1000, "stored": False}, "where to go on"
        assert (await put(made, LARGE, LARGE[:2000])).json() == {"offset": 2000, "stored": False}, "sent twice"
        assert (await put(made, LARGE, b"gap", 5000)).json() == {"offset": 2000, "stored": False}
        assert await missing(made, LARGE) == [digest_of(LARGE)]
        assert (await put(made, LARGE, LARGE[2000:], 2000)).json() == {"offset": len(LARGE), "stored": True}
        assert (await put(made, LARGE, LARGE[2000:], 2000)).json() == {"offset": len(LARGE), "stored": True}
        assert (await put(made, LARGE, b"")).json() == {"offset": len(LARGE), "stored": True}
        assert await missing(made, LARGE) == []
        assert (await made.client.get(f"{BLOBS}/{digest_of(LARGE)}")).content == LARGE


async def test_an_empty_blob() -> None:
    async with inprocess_server() as made:
        assert (await put(made, b"", b"")).json() == {"offset": 0, "stored": True}
        answer = await made.client.get(f"{BLOBS}/{digest_of(b'')}")
        assert (answer.status_code, answer.content) == (200, b"")


async def test_uploads_of_two_principals_share_no_bytes() -> None:
    async with inprocess_server() as made:
        other = await caller(made, "submitter", "default")
        await put(made, LARGE, b"spoilt" + LARGE[6:1000])
        path, query = f"{BLOBS}/{digest_of(LARGE)}", {"size": len(LARGE)}
        answer = await other.request("PUT", path, content=b"", params=query)
        assert answer.json() == {"offset": 0, "stored": False}


@pytest.mark.parametrize(
    ("size", "piece"),
    [(len(ONE), b"0ne"), (2, ONE[:2]), (len(ONE), b"one more"), (0, b"x")],
    ids=["other bytes", "fewer bytes", "more bytes than announced", "bytes of an empty blob"],
)
async def test_wrong_bytes_are_refused_and_nothing_is_kept(size: int, piece: bytes) -> None:
    async with inprocess_server() as made:
        answer = await made.client.put(f"{BLOBS}/{digest_of(ONE)}", content=piece, params={"size": size})
        assert (answer.status_code, answer.json()["code"]) == (422, "wrong_bytes"), answer.text
        assert await missing(made, ONE) == [digest_of(ONE)]
        assert (await put(made, ONE, b"")).json() == {"offset": 0, "stored": False}


async def test_another_size_of_a_blob_that_is_there_is_refused() -> None:
    async with inprocess_server() as made:
        await send_pack(made, ONE)
        answer = await made.client.put(f"{BLOBS}/{digest_of(ONE)}", content=b"", params={"size": 99})
        assert (answer.status_code, answer.json()["code"]) == (422, "wrong_bytes")


@pytest.mark.parametrize("digest", ["x", "sha256:", "sha256:" + "A" * 64, "sha256:" + "a" * 63, "md5:" + "a" * 64])
async def test_a_text_that_is_no_digest_is_refused_everywhere(digest: str) -> None:
    async with inprocess_server() as made:
        answers = [
            await made.client.put(f"{BLOBS}/{digest}", content=b"x", params={"size": 1}),
            await made.client.get(f"{BLOBS}/{digest}"),
            await made.client.get(f"{FILES}/{digest}"),
            await made.client.post(FILES, params={"digest": digest}),
            await made.client.post(f"{FILES}/missing", json={"digests": [digest_of(ONE), digest]}),
            await made.client.post(f"{FILES}/contents", json={"digests": [digest_of(ONE), digest]}),
        ]
        for answer in answers:
            assert answer.status_code == 422, answer.text
            assert answer.json()["path"] in ("digest", "digests[1]")


def bomb() -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(bytes(1 << 30))


@pytest.mark.parametrize(
    ("pack", "status"),
    [
        (b"", 422),
        (b"no pack", 422),
        (pack_contents([(digest_of(ONE), ONE)])[:-3], 422),
        (pack_contents([(digest_of(ONE), ONE)]) + b"x", 422),
        (pack_contents([(digest_of(ONE), ONE), (digest_of(TWO), b"other")]), 422),
        (zstandard.compress(bytes(10)), 422),
        (zstandard.compress(bytes(32) + b"\xff\xff\xff\xff"), 422),
        (pack_contents([(digest_of(ONE), bytes(CHUNK_BYTES_MAX + 1_000_000))]), 413),
        (pack_contents([(digest_of(b""), b"")] * 10_001), 413),
    ],
    ids=["empty", "garbage", "cut", "longer", "wrong digest", "cut header", "cut file", "too large", "too many"],
)
async def test_a_wrong_pack_is_refused_and_nothing_of_it_is_kept(pack: bytes, status: int) -> None:
    async with inprocess_server() as made:
        answer = await made.client.post(f"{FILES}/pack", content=pack)
        assert answer.status_code == status, answer.text
        assert await missing(made, ONE, TWO) == [digest_of(ONE), digest_of(TWO)]


async def test_a_pack_that_explodes_is_refused_early() -> None:
    async with inprocess_server() as made:
        assert (await made.client.post(f"{FILES}/pack", content=bomb())).status_code == 413


async def test_a_body_of_more_than_a_chunk_is_refused_before_it_is_read() -> None:
    async with inprocess_server() as made:
        answer = await made.client.post(f"{FILES}/pack", content=bytes(CHUNK_BYTES_MAX + 1))
        assert (answer.status_code, answer.json()["params"]) == (413, {"bytes_max": CHUNK_BYTES_MAX})
        text = await made.client.post(f"{FILES}/pack", json={})
        assert text.status_code == 415


async def test_a_manifest_without_its_contents_is_a_conflict_that_lists_them() -> None:
    async with inprocess_server() as made:
        await send_pack(made, ONE)
        answer = await made.client.post(FILES, content=BOTH)
        assert answer.status_code == 409
        assert answer.json()["code"] == "files_missing"
        assert answer.json()["params"] == {"count": 1, "missing": [digest_of(TWO)]}
        await send_pack(made, TWO)
        assert (await made.client.post(FILES, content=BOTH)).status_code == 201


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b"", "manifest"),
        (b"{}", "manifest"),
        (b'{"entries":[] }', "manifest"),
        (b'{"entries":[{"type":"file"}]}', "manifest"),
        (manifest(file("../up", ONE)), "../up"),
        (manifest(file("b", ONE), file("a", ONE)), "a"),
        (manifest(LinkEntry("out", "/etc/passwd")), "out"),
        (manifest(FileEntry("a", 0o644, len(ONE) + 1, digest_of(ONE))), "manifest"),
    ],
    ids=["empty", "no entries", "spaces", "no path", "leaves", "no order", "link leaves", "wrong size"],
)
async def test_a_wrong_manifest_is_refused_with_the_path_in_it(data: bytes, path: str) -> None:
    async with inprocess_server() as made:
        await send_pack(made, ONE)
        answer = await made.client.post(FILES, content=data)
        assert (answer.status_code, answer.json()["path"]) == (422, path), answer.text


async def test_a_large_manifest_is_a_blob_first_and_is_checked_beside_the_loop() -> None:
    async with inprocess_server() as made:
        await send_pack(made, ONE)
        whole = manifest(*[file(f"f{number:06}", ONE) for number in range(2_000)])
        assert (await put(made, whole, whole)).json()["stored"]
        answer = await made.client.post(FILES, params={"digest": digest_of(whole)})
        assert answer.json() == {"digest": digest_of(whole), "files": 2_000, "size": 6_000}
        wrong = manifest(*[file(f"f{number:06}", ONE) for number in range(2_000)], file("f000000", ONE))
        refused = await made.client.post(FILES, content=wrong)
        assert (refused.status_code, refused.json()["path"]) == (422, "f000000")
        both = await made.client.post(FILES, params={"digest": digest_of(whole)}, content=BOTH)
        assert (both.status_code, both.json()["path"]) == (422, "digest")
        unknown = await made.client.post(FILES, params={"digest": digest_of(b"?")})
        assert unknown.status_code == 404


RANGES = [
    ("bytes=0-0", 206, LARGE[:1], f"bytes 0-0/{len(LARGE)}"),
    ("bytes=5-9", 206, LARGE[5:10], f"bytes 5-9/{len(LARGE)}"),
    (f"bytes={2 << 20}-", 206, LARGE[2 << 20 :], f"bytes {2 << 20}-{len(LARGE) - 1}/{len(LARGE)}"),
    ("bytes=-7", 206, LARGE[-7:], f"bytes {len(LARGE) - 7}-{len(LARGE) - 1}/{len(LARGE)}"),
    (f"bytes=10-{1 << 50}", 206, LARGE[10:], f"bytes 10-{len(LARGE) - 1}/{len(LARGE)}"),
    ("bytes=1-2,5-6", 200, LARGE, None),
    ("bytes=9-5", 200, LARGE, None),
    ("lines=1-2", 200, LARGE, None),
]


async def test_a_range_of_a_blob() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await made.files.root.project("default").put([(digest_of(LARGE), LARGE)])
        for asked, status, data, content_range in RANGES:
            answer = await client.get(f"{BLOBS}/{digest_of(LARGE)}", headers={"range": asked})
            assert (answer.status_code, answer.headers.get("content-range")) == (status, content_range), asked
            assert answer.content == data
            assert answer.headers["content-length"] == str(len(data))
        query = await client.get(f"{BLOBS}/{digest_of(LARGE)}", params={"offset": -10, "length": 4})
        assert (query.status_code, query.content) == (200, LARGE[-10:-6])
        for asked in (f"bytes={len(LARGE)}-", "bytes=-0", f"bytes={1 << 50}-"):
            answer = await client.get(f"{BLOBS}/{digest_of(LARGE)}", headers={"range": asked})
            assert (answer.status_code, answer.json()["params"]) == (416, {"size": len(LARGE)}), asked


async def test_other_projects_have_no_files_and_viewers_send_none() -> None:
    async with inprocess_server() as made:
        await send_pack(made, ONE, TWO)
        await made.client.post(FILES, content=BOTH)
        stranger = await caller(made, "admin", "elsewhere")
        requests = [
            ("POST", f"{FILES}/missing", {"json": {"digests": [digest_of(ONE)]}}),
            ("PUT", f"{BLOBS}/{digest_of(ONE)}", {"content": ONE, "params": {"size": len(ONE)}}),
            ("POST", f"{FILES}/pack", {"content": pack_contents([(digest_of(ONE), ONE)])}),
            ("POST", FILES, {"content": BOTH}),
            ("GET", f"{FILES}/{digest_of(BOTH)}", {}),
            ("GET", f"{BLOBS}/{digest_of(ONE)}", {}),
            ("POST", f"{FILES}/contents", {"json": {"digests": [digest_of(ONE)]}}),
        ]
        for method, path, more in requests:
            answer = await stranger.request(method, path, **more)
            assert answer.status_code == 404, path
            nothing = await stranger.request(method, path.replace("default", "nowhere"), **more)
            assert nothing.json()["message"] == answer.json()["message"].replace("default", "nowhere")
        body = {"digests": [digest_of(ONE)]}
        theirs = await stranger.request("POST", "/v1/projects/elsewhere/files/missing", json=body)
        assert theirs.json() == {"missing": [digest_of(ONE)]}, "the same bytes in another project are unknown here"
        await stranger.get(f"/v1/projects/elsewhere/blobs/{digest_of(ONE)}", 404)
        viewer = await caller(made, "viewer", "default")
        statuses = [(await viewer.request(method, path, **more)).status_code for method, path, more in requests]
        assert statuses == [403, 403, 403, 403, 200, 200, 200]


async def test_a_server_that_no_longer_leads_takes_no_files() -> None:
    async with inprocess_server() as made:
        with in_role(made.engine, Following()):
            answer = await made.client.post(f"{FILES}/missing", json={"digests": [digest_of(ONE)]})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_what_an_earlier_lead_has_held_counts_no_more() -> None:
    async with inprocess_server() as made:
        await missing(made, ONE)
        held = made.files.project("default").garbage
        assert held.held_count == 1
        made.engine.machine.epoch += 1
        assert made.files.project("default").garbage.held_count == 0


async def test_a_full_disk_is_an_answer_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with inprocess_server() as made:
        full = BlobsUnavailable("no space left; free some space")

        async def refuse(*_: Any) -> BlobsUnavailable:
            return full

        blobs = made.files.root.project("default")
        for method in ("put", "write", "missing"):
            monkeypatch.setattr(blobs, method, refuse)
        answers = [await send_pack(made, ONE), await put(made, LARGE, b"x")]
        answers.append(await made.client.post(f"{FILES}/missing", json={"digests": [digest_of(ONE)]}))
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (503, "blobs_unavailable")
            assert "free some space" in answer.json()["message"]


async def test_a_principal_has_a_bounded_number_of_transfers() -> None:
    async with inprocess_server() as made:
        shares = made.api.state["transfers"]
        taken = Principal("root", "", ALL)
        for _ in range(TRANSFERS_MAX):
            shares.take(taken)
        try:
            assert (await send_pack(made, ONE)).json()["code"] == "busy"
        finally:
            for _ in range(TRANSFERS_MAX):
                shares.give_back("root")
        assert (await send_pack(made, ONE)).status_code == 204
        assert (await made.client.get(f"{BLOBS}/{digest_of(ONE)}")).content == ONE
        assert len(shares) == 0


async def test_bytes_that_nothing_names_are_bounded_until_a_workload_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "PRINCIPAL_BYTES_MAX", len(ONE) + len(TWO) + len(BOTH))
    async with inprocess_server() as made:
        assert (await send_pack(made, ONE, TWO)).status_code == 204
        assert (await made.client.post(FILES, content=BOTH)).status_code == 201
        refused = await put(made, LARGE, LARGE[:1000])
        assert (refused.status_code, refused.json()["code"]) == (503, "files_held")
        assert refused.json()["params"]["more"] == len(LARGE) and "nothing uses yet" in refused.json()["message"]
        assert await missing(made, LARGE) == [digest_of(LARGE)], "and nothing of it was kept"
        await made.submit("job", inputs=[{"from": digest_of(BOTH)}])
        monkeypatch.setattr(sent, "PRINCIPAL_BYTES_MAX", len(LARGE))
        assert (await put(made, LARGE, LARGE[:1000])).json()["offset"] == 1000, "what the job uses counts no more"
