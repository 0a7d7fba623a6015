"""A node's key and certificate: kept, renewed in time, and what the agent says when they are of no use."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from roost.agent.connection import enrolment
from roost.agent.connection import identity as identity_module
from roost.agent.connection import machine as link_module
from roost.agent.connection.identity import NodeIdentity, check_own, keep_renewed, make_request
from roost.model.errors import Invalid
from roost.model.records.enrolment import Bundle, JoinToken, read_bundle, read_token
from roost.server.http.server import Web, listen
from roost.server.pki.certificates import Certificates
from tests.agent.agent_harness import agent, until
from tests.certified import another_authority, authority, channel_to, new_bundle, node_bundle
from tests.server.gateway_server import gateway_server
from tests.server.inprocess_server import inprocess_server


def shortened(bundle: Bundle, issued_ago_ms: int, left_ms: int) -> Bundle:
    """The same certificate, as if it had been issued then and ended then."""
    now = identity_module.now_ms()
    return Bundle(
        bundle.key, bundle.certificate, bundle.authority, bundle.name, now - issued_ago_ms, now + left_ms, ("h:1",)
    )


# --- the file ---------------------------------------------------------------------------------------------------------


def test_it_is_kept_for_its_owner_only_and_read_back(tmp_path: Path) -> None:
    identity, bundle = NodeIdentity(str(tmp_path)), node_bundle("n1")
    assert identity.read() is None and not identity.exists()
    identity.write(bundle)
    assert identity.read() == bundle
    assert (tmp_path / "certificate.pem").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["certificate.pem"]


def test_it_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    identity = NodeIdentity(str(tmp_path))
    identity.write(node_bundle("n1"))
    first = identity.read()
    assert identity.read() is first
    NodeIdentity(str(tmp_path)).write(new_bundle("n1"))
    assert identity.read() not in (None, first)


@pytest.mark.parametrize("text", ["", "{}", "{}\n-----BEGIN X-----\n", "[1]\n", "not json\n"])
def test_a_file_that_is_not_one_of_ours_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "certificate.pem").write_text(text)
    with pytest.raises(ValueError):
        NodeIdentity(str(tmp_path)).read()


def test_a_bundle_without_its_key_is_none() -> None:
    bundle = node_bundle("n1")
    with pytest.raises(ValueError):
        read_bundle(bundle.text().replace(bundle.key, ""))


def test_a_certificate_of_another_node_is_refused() -> None:
    with pytest.raises(Invalid, match="of node n1, not of n2"):
        check_own(node_bundle("n1"), "n2")


# --- renewal ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def renewing(port: int, folder: Path, bundle: Bundle) -> AsyncIterator[NodeIdentity]:
    identity = NodeIdentity(str(folder))
    identity.write(bundle)
    task = asyncio.ensure_future(keep_renewed(identity, lambda shown: channel_to(port, shown)))
    try:
        yield identity
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_after_two_thirds_of_its_life_the_certificate_is_renewed(tmp_path: Path) -> None:
    async with gateway_server() as server:
        old = shortened(node_bundle("n1"), 2_100, 1_000)
        async with renewing(server.port, tmp_path, old) as identity:
            await until(lambda: identity.read() != old)
        new = identity.read()
        assert new is not None
        assert new.key != old.key and server.certificates.is_current("n1", new.certificate)
        assert new.servers == ("h:1",)


async def test_before_that_it_is_left_alone(tmp_path: Path) -> None:
    async with gateway_server() as server:
        young = shortened(node_bundle("n1"), 1_000, 600_000)
        async with renewing(server.port, tmp_path, young) as identity:
            async with agent(server.port, tmp_path) as (service, _):
                await until(lambda: service.actor.lease_ms)
            assert identity.read() == young
            assert server.certificates.is_current("n1", young.certificate)


async def test_a_server_that_is_away_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(identity_module, "RENEW_AGAIN_S_MIN", 0.01)
    monkeypatch.setattr(identity_module, "RENEW_S_MAX", 0.05)
    async with gateway_server() as server:
        ports = [1]
        old = shortened(node_bundle("n1"), 600_000, 60_000)
        identity = NodeIdentity(str(tmp_path))
        identity.write(old)
        task = asyncio.ensure_future(keep_renewed(identity, lambda shown: channel_to(ports[0], shown)))
        outcome = ""
        while "tried again" not in outcome:
            await asyncio.sleep(0.005)
            outcome += capsys.readouterr().err
        assert identity.read() == old
        ports[0] = server.port
        await until(lambda: identity.read() != old)
        task.cancel()


async def test_an_agent_whose_certificate_has_ended_says_what_is_needed_and_goes_on_once_it_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "REFUSED_MS", 20)
    over = shortened(node_bundle("n1"), 10_000, -1_000)
    async with gateway_server() as server, agent(server.port, tmp_path, bundle=over) as (service, _):
        await until(lambda: service.machine.link.tries)
        outcome = capsys.readouterr().err
        assert "has ended" in outcome and "a new join token is needed" in outcome
        assert not server.engine.state.nodes
        NodeIdentity(str(tmp_path)).write(node_bundle("n1"))
        await until(lambda: "n1" in server.engine.state.nodes)


# --- joining ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def inviting(**about: Any) -> AsyncIterator[Callable[..., JoinToken]]:
    """A server that machines can join, over plain HTTP; makes tokens with something changed about them."""
    async with inprocess_server() as made:
        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        made.context.joining.begin(Certificates(made.engine, authority(), ("h:1",)), (url,))
        token = read_token((await made.post("/v1/join-tokens", expect=201))["token"])
        web = Web(made.door, grace_s=1.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(web.serve(sockets=[listener]))
            await web.ready.wait()
            yield lambda **change: JoinToken(**{**fields(token), **change})
            web.leave()


def fields(token: JoinToken) -> dict[str, Any]:
    return {"urls": token.urls, "authority": token.authority, "id": token.id, "secret": token.secret}


async def join(folder: Path, token: JoinToken, patience_s: float = 0.0) -> Bundle:
    return await asyncio.to_thread(enrolment.join, NodeIdentity(str(folder)), token, "n1", patience_s)


async def test_a_machine_that_joins_has_a_certificate_and_knows_where_to_go(tmp_path: Path) -> None:
    async with inviting() as token:
        bundle = await join(tmp_path, token())
        assert NodeIdentity(str(tmp_path)).read() == bundle
        assert (bundle.name, bundle.servers, bundle.authority) == ("n1", ("h:1",), authority().certificate)


async def test_a_server_with_another_ca_gets_no_secret(tmp_path: Path) -> None:
    async with inviting() as token:
        with pytest.raises(enrolment.EnrolmentRefused, match="another CA"):
            await join(tmp_path, token(authority=another_authority().fingerprint))
        assert not NodeIdentity(str(tmp_path)).exists()
        await join(tmp_path, token())  # nothing was used up


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_second_certificate_beside_the_pinned_one_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A stand-in shows the real CA, which every client may have, and appends its own."""
    ask, asked = enrolment._call, []

    def stand_in(url: str, ca: str | None, verb: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        asked.append(verb)
        answer = ask(url, ca, verb, body)
        field = "certificate" if verb == "GET" else "authority"
        return {**answer, field: answer[field] + another_authority().certificate} if verb == method else answer

    monkeypatch.setattr(enrolment, "_call", stand_in)
    async with inviting() as token:
        with pytest.raises(enrolment.EnrolmentRefused, match="another CA"):
            await join(tmp_path, token())
        assert asked[-1] == method, "the secret goes only to a server whose CA is the pinned one and no other"
        assert not NodeIdentity(str(tmp_path)).exists()


async def test_a_server_that_does_not_answer_is_passed_over(tmp_path: Path) -> None:
    async with inviting() as token:
        await join(tmp_path, token(urls=("http://127.0.0.1:1", *token().urls)))


async def test_a_missing_server_is_reported(tmp_path: Path) -> None:
    token = JoinToken(("http://127.0.0.1:1",), "f", "i", "s")
    with pytest.raises(enrolment.EnrolmentUnreachable, match="http://127.0.0.1:1"):
        await join(tmp_path, token)


async def test_what_the_server_says_no_to_is_reported(tmp_path: Path) -> None:
    async with inviting() as token:
        with pytest.raises(enrolment.EnrolmentRefused, match="not known here"):
            await join(tmp_path, token(secret="guessed"))
        assert not NodeIdentity(str(tmp_path)).exists()


def test_a_key_is_new_every_time() -> None:
    assert make_request("n1")[0] != make_request("n1")[0]
    assert isinstance(identity_module.credentials_of(node_bundle("n1")), grpc.ChannelCredentials)
