"""What a server shows: TLS for the API with its own CA or the operator's files, renewed while it runs."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx
import pytest

from roost.client import Client
from roost.client.errors import Unreachable
from roost.model.errors import Invalid
from roost.model.records.enrolment import Bundle
from roost.server.config import CERTIFICATE_MS
from roost.server.http import server as http_server
from roost.server.http.server import Web, listen
from roost.server.pki import tls
from roost.server.pki.tls import OperatorCertificate, ServerCertificate, advertised
from tests.certified import another_authority, authority, new_bundle, node_bundle
from tests.server.inprocess_server import DEADLINE_S, TOKEN, inprocess_server

HOSTS = ("roost.example",)


def certificate(data: Path, life_ms: int = CERTIFICATE_MS) -> ServerCertificate:
    return ServerCertificate(authority(), "s1", HOSTS, data, life_ms)


@asynccontextmanager
async def serving(shown: ServerCertificate | OperatorCertificate | None, data: Path) -> AsyncIterator[int]:
    """A server that is spoken to over TLS; its port."""
    async with inprocess_server() as made:
        server = Web(made.door, grace_s=2.0)
        server.tls = shown.context if shown is not None else None
        listener = listen("127.0.0.1", 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            await server.ready.wait()
            yield listener.getsockname()[1]
            server.leave()


async def status(port: int, ca: str, host: str = "127.0.0.1") -> int:
    """What the client of the command line gets, which waits in a thread."""

    def ask() -> int:
        with Client(f"https://{host}:{port}", TOKEN, ca) as client:
            return client.status().revision

    return await asyncio.to_thread(ask)


def serial_of(port: int) -> bytes:
    """The certificate that is shown to a new connection."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=DEADLINE_S).encode()


# --- over TLS ---------------------------------------------------------------------------------------------------------


async def test_the_client_verifies_the_server_by_our_ca(tmp_path: Path) -> None:
    async with serving(certificate(tmp_path), tmp_path) as port:
        assert await status(port, authority().certificate) >= 0
        assert await status(port, authority().certificate, "localhost") >= 0


async def test_a_server_of_another_ca_is_not_spoken_to(tmp_path: Path) -> None:
    async with serving(certificate(tmp_path), tmp_path) as port:
        for ca in (another_authority().certificate, ""):
            with pytest.raises(Unreachable, match="not to be trusted") as refused:
                await status(port, ca)
            assert "ROOST_CA" in refused.value.hint


async def test_a_node_cannot_play_the_api(tmp_path: Path) -> None:
    evil = new_bundle("localhost")
    file = tmp_path / "evil.pem"
    file.write_text(evil.key + evil.certificate)
    async with serving(OperatorCertificate(file, file), tmp_path) as port:
        with pytest.raises(Unreachable, match="not to be trusted"):
            await status(port, authority().certificate, "localhost")


async def test_streams_come_over_tls_too(tmp_path: Path) -> None:
    async with serving(certificate(tmp_path), tmp_path) as port:

        def follow() -> str:
            with Client(f"https://127.0.0.1:{port}", TOKEN, authority().certificate) as client:
                with client.changes.open(since=0) as follower:
                    client.workloads.submit({"name": "job", "command": ["/bin/true"]})
                    while (event := follower.next(DEADLINE_S)) is not None:
                        if "default/job" in event.data:
                            return event.name
            return "nothing"

        assert await asyncio.to_thread(follow) == "change"


async def test_without_tls_nothing_is_heard(tmp_path: Path) -> None:
    async with serving(certificate(tmp_path), tmp_path) as port:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/livez")
        assert await status(port, authority().certificate) >= 0


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    assert certificate(tmp_path).context.minimum_version == ssl.TLSVersion.TLSv1_2
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(certificate(tmp_path), tmp_path) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def test_a_handshake_that_takes_forever_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HANDSHAKE_S_MAX", 0.1)
    async with serving(certificate(tmp_path), tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(DEADLINE_S):
            writer.write(b"\x16\x03\x01")
            assert await reader.read() == b""
        writer.close()


# --- our own certificate ----------------------------------------------------------------------------------------------


def test_a_server_that_starts_again_shows_the_same_certificate(tmp_path: Path) -> None:
    first = certificate(tmp_path).bundle
    assert certificate(tmp_path).bundle == first
    assert (tmp_path / "server.pem").stat().st_mode & 0o777 == 0o600
    assert first.hosts == ("roost.example", "localhost", "127.0.0.1", "::1")


def test_other_names_another_ca_or_a_spoilt_file_mean_a_new_certificate(tmp_path: Path) -> None:
    first = certificate(tmp_path).bundle
    named = ServerCertificate(authority(), "s1", (*HOSTS, "other.example"), tmp_path).bundle
    assert named != first
    trusted = ServerCertificate(another_authority(), "s1", HOSTS, tmp_path).bundle
    assert trusted.authority == another_authority().certificate
    (tmp_path / "server.pem").write_text("{}\nnonsense")
    assert certificate(tmp_path).bundle.authority == authority().certificate


async def test_it_is_renewed_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = certificate(tmp_path)
    async with serving(own, tmp_path) as port:
        shown = await asyncio.to_thread(serial_of, port)
        own.refresh()
        assert await asyncio.to_thread(serial_of, port) == shown  # it is not time for it
        later = own.bundle.renew_ms + 1
        monkeypatch.setattr(tls, "now_ms", lambda: later)
        own.refresh()
        assert await asyncio.to_thread(serial_of, port) != shown
        assert await status(port, authority().certificate) >= 0


async def test_agents_that_connect_later_are_shown_the_renewed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, node = certificate(tmp_path), node_bundle("n1")
    (tmp_path / "node.pem").write_text(node.key + node.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority().certificate)
    context.load_cert_chain(tmp_path / "node.pem")
    context.set_alpn_protocols(["h2"])

    async def shown(port: int) -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="roost-server")
        content: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return content

    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", own.grpc_credentials(authority().certificate))
    await server.start()
    try:
        first = await shown(port)
        assert await shown(port) == first
        later = own.bundle.renew_ms + 1
        monkeypatch.setattr(tls, "now_ms", lambda: later)
        own.refresh()
        assert await shown(port) != first
    finally:
        await server.stop(0)


def test_two_thirds_of_a_life_are_used() -> None:
    assert Bundle("", "", "", "n", 3_000, 6_000).renew_ms == 5_000


# --- the operator's own -----------------------------------------------------------------------------------------------


def operators(folder: Path) -> tuple[Path, Path]:
    """A certificate as an operator brings it: of a CA that is not ours."""
    made = another_authority().for_server("api", ("127.0.0.1",))
    paths = (folder / "api.pem", folder / "api.key")
    for path, text in zip(paths, (made.certificate, made.key), strict=True):
        draft = folder / "draft"
        draft.write_text(text)
        os.replace(draft, path)
    return paths


async def test_files_of_the_operator_are_shown_and_read_again_when_they_change(tmp_path: Path) -> None:
    own = OperatorCertificate(*operators(tmp_path))
    async with serving(own, tmp_path) as port:
        assert await status(port, another_authority().certificate) >= 0
        shown = await asyncio.to_thread(serial_of, port)
        operators(tmp_path)
        own.refresh()
        assert await asyncio.to_thread(serial_of, port) != shown
        assert await status(port, another_authority().certificate) >= 0


async def test_files_that_are_spoilt_later_leave_the_old_ones_in_use(tmp_path: Path) -> None:
    paths = operators(tmp_path)
    own = OperatorCertificate(*paths)
    async with serving(own, tmp_path) as port:
        paths[0].write_text("half of it")
        own.refresh()
        assert await status(port, another_authority().certificate) >= 0
        paths[1].unlink()
        own.refresh(always=True)
        assert await status(port, another_authority().certificate) >= 0


def test_files_that_cannot_be_used_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        OperatorCertificate(tmp_path / "none", tmp_path / "none")
    assert refused.value.path == "tls_cert"


# --- by which names ---------------------------------------------------------------------------------------------------


def test_a_server_is_reached_as_it_listens_or_as_the_operator_says() -> None:
    assert advertised("10.0.0.1", ()) == ("10.0.0.1",)
    assert advertised("0.0.0.0", ("roost.example",)) == ("roost.example",)
    guessed = advertised("0.0.0.0", ())
    assert guessed and "0.0.0.0" not in guessed
