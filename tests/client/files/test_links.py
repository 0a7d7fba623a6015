"""With blobs in S3, large files go straight there and come from there; or through the server, where that fails."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.client import Client
from roost.client.errors import CannotSend
from roost.client.transport import Transport
from roost.files import web
from tests.cli.serving import serving
from tests.client.files.conftest import shape
from tests.components.seaweedfs import setting_of


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    home = tmp_path / "s3-server"
    home.mkdir()
    with serving(home, "server", "--store", "memory", "--blobs", setting_of(monkeypatch)) as served:
        with served.client() as client:
            yield client


class Carried:
    """Bytes of large files that the server has carried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = self.fetched = 0
        real_call, real_download = Transport.call, Transport.download

        def call(transport, method, path, query=None, body=None, *given):  # type: ignore[no-untyped-def]
            self.sent += len(body or b"") if "/blobs/" in path else 0
            return real_call(transport, method, path, query, body, *given)

        def download(transport, path, start=0):  # type: ignore[no-untyped-def]
            for block in real_download(transport, path, start):
                self.fetched += len(block) if "/blobs/" in path else 0
                yield block

        monkeypatch.setattr(Transport, "call", call)
        monkeypatch.setattr(Transport, "download", download)


def test_large_files_go_straight_to_s3_and_back(
    client: Client, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried, sent, fetched = Carried(monkeypatch), [(0, 0)], [(0, 0)]
    found = client.files.send(tree, sent=lambda *now: sent.append(now))
    client.files.get(found.digest, tmp_path / "got", fetched=lambda *now: fetched.append(now))
    assert shape(tmp_path / "got") == shape(tree)
    assert (carried.sent, carried.fetched) == (0, 0)
    for progress in (sent, fetched):
        assert progress[-1][0] == progress[-1][1] > 9 << 20 and sorted(progress) == progress and len(progress) > 3


def test_a_client_that_does_not_reach_s3_sends_and_gets_through_the_server(
    client: Client, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise web.WebTrouble("no route")

    monkeypatch.setattr(web, "put", fails)
    monkeypatch.setattr(web, "get", fails)
    carried = Carried(monkeypatch)
    client.files.get(client.files.send(tree).digest, tmp_path / "got")
    assert shape(tmp_path / "got") == shape(tree)
    assert carried.sent == carried.fetched == 9 << 20


def test_a_download_that_breaks_off_goes_on_through_the_server(
    client: Client, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = client.files.send(tree).digest
    real = web.get

    def breaks_off(*given):  # type: ignore[no-untyped-def]
        yield next(real(*given))
        raise web.WebTrouble("it broke")

    monkeypatch.setattr(web, "get", breaks_off)
    carried = Carried(monkeypatch)
    client.files.get(digest, tmp_path / "got")
    assert shape(tmp_path / "got") == shape(tree)
    assert carried.fetched == (9 << 20) - web.CHUNK_BYTES


def test_a_file_that_changes_while_it_goes_to_s3_is_not_kept(
    client: Client, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = web.put

    def change_and_put(*given):  # type: ignore[no-untyped-def]
        (tree / "large").write_bytes(os.urandom(9 << 20))
        real(*given)

    monkeypatch.setattr(web, "put", change_and_put)
    with pytest.raises(CannotSend, match="changed while it was sent"):
        client.files.send(tree)
