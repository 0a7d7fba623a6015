"""The CA: made once, kept with its key sealed, opened with the key; and what it puts its name to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from roost.agent.connection.identity import make_request
from roost.core.state.records import Settings
from roost.model.errors import Invalid
from roost.server.engine.engine import Clock, Engine
from roost.server.engine.executor import Executor
from roost.server.engine.role import Following
from roost.server.feed.change_log import Watch
from roost.server.pki import authority as authority_module
from roost.server.pki.authority import Authority, AuthorityUnavailable, fingerprint, make_authority, open_authority
from roost.server.pki.encryption import Seal
from roost.stores.memory import Memory, MemoryStore
from tests.certified import authority, new_bundle
from tests.server.inprocess_server import in_role

KEY, NEXT_KEY = b"k" * 32, b"n" * 32


class NoLogs:
    def drop(self, prefix: str) -> None:
        raise AssertionError("nothing is dropped here")


@asynccontextmanager
async def deciding(memory: Memory) -> AsyncIterator[Engine]:
    engine = Engine(MemoryStore(memory), Settings(), Executor(Watch(), NoLogs()), Clock())
    await engine.open("server")
    async with asyncio.TaskGroup() as group:
        group.create_task(engine.run())
        try:
            yield engine
        finally:
            engine.stop()


def stored(engine: Engine) -> bytes:
    return engine.state.opaque_records["authority"]["ca"]


async def test_the_first_server_makes_it_and_the_next_ones_open_it() -> None:
    memory = Memory()
    async with deciding(memory) as engine:
        first = await open_authority(engine, Seal(KEY))
    async with deciding(memory) as engine:
        again = await open_authority(engine, Seal(KEY))
        assert again.certificate == first.certificate
        _, request = make_request("n1")
        assert x509_of(again.for_node("n1", request).certificate).issuer == x509_of(first.certificate).subject


async def test_two_that_start_at_once_agree_on_one() -> None:
    async with deciding(Memory()) as engine:
        one, two = await asyncio.gather(open_authority(engine, Seal(KEY)), open_authority(engine, Seal(KEY)))
        assert one.fingerprint == two.fingerprint


async def test_its_key_is_stored_sealed() -> None:
    async with deciding(Memory()) as engine:
        await open_authority(engine, Seal(KEY))
        assert b"BEGIN CERTIFICATE" in stored(engine)
        assert b"PRIVATE KEY" not in stored(engine)


async def test_without_the_key_the_operator_gets_the_next_step() -> None:
    memory = Memory()
    async with deciding(memory) as engine:
        await open_authority(engine, Seal(KEY))
    async with deciding(memory) as engine:
        with pytest.raises(AuthorityUnavailable, match="needs the same --key-file.*--new-authority"):
            await open_authority(engine, Seal(NEXT_KEY))


async def test_a_new_key_seals_it_again_and_the_old_one_is_no_longer_needed() -> None:
    memory = Memory()
    async with deciding(memory) as engine:
        first = await open_authority(engine, Seal(KEY))
    async with deciding(memory) as engine:
        await open_authority(engine, Seal(NEXT_KEY, KEY))
        assert (await open_authority(engine, Seal(NEXT_KEY))).fingerprint == first.fingerprint


async def test_a_new_one_is_made_if_asked_for_and_takes_all_certificates_of_the_old_one_with_it() -> None:
    from roost.server.pki.certificates import Certificates

    memory = Memory()
    async with deciding(memory) as engine:
        first = await open_authority(engine, Seal(KEY))
        await Certificates(engine, first).enrol("n1", make_request("n1")[1])
    async with deciding(memory) as engine:
        assert "n1" in engine.state.opaque_records["certificate"]
        second = await open_authority(engine, Seal(NEXT_KEY), anew=True)
        assert second.fingerprint != first.fingerprint
        assert not engine.state.opaque_records["certificate"]


async def test_only_the_server_that_leads_makes_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority_module, "LEAD_S_MAX", 0.0)
    async with deciding(Memory()) as engine:
        first = await open_authority(engine, Seal(KEY))
        with in_role(engine, Following()):
            with pytest.raises(AuthorityUnavailable, match="stop all of them"):
                await open_authority(engine, Seal(KEY), anew=True)
            assert (await open_authority(engine, Seal(KEY))).fingerprint == first.fingerprint


async def test_a_store_that_forgets_leaves_it_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "authority.sealed"
    async with deciding(Memory()) as engine:
        first = await open_authority(engine, Seal(KEY), file)
    assert file.stat().st_mode & 0o777 == 0o600
    async with deciding(Memory()) as engine:
        assert (await open_authority(engine, Seal(KEY), file)).fingerprint == first.fingerprint
    async with deciding(Memory()) as engine:
        assert (await open_authority(engine, Seal(KEY), file, anew=True)).fingerprint != first.fingerprint


# --- what it issues ---------------------------------------------------------------------------------------------------


def x509_of(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def names_of(certificate: x509.Certificate) -> dict[str, list[str]]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    kinds: dict[str, Any] = {"dns": x509.DNSName, "uri": x509.UniformResourceIdentifier, "ip": x509.IPAddress}
    return {kind: [str(item) for item in names.get_values_for_type(of)] for kind, of in kinds.items()}


def uses_of(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_servers_certificate_names_it_in_every_way_it_is_reached() -> None:
    bundle = authority().for_server("s1", ("roost.example", "10.0.0.1", "::1"))
    certificate = x509_of(bundle.certificate)
    assert names_of(certificate) == {
        "dns": ["roost-server", "roost.example"],
        "uri": ["roost://server/s1"],
        "ip": ["10.0.0.1", "::1"],
    }
    assert uses_of(certificate) == [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_nodes_certificate_is_of_use_to_a_client_only() -> None:
    certificate = x509_of(new_bundle("n1").certificate)
    assert names_of(certificate) == {"dns": [], "uri": ["roost://node/n1"], "ip": []}
    assert uses_of(certificate) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificate.verify_directly_issued_by(x509_of(authority().certificate))


def test_two_certificates_never_have_the_same_serial_number() -> None:
    one, two = (x509_of(new_bundle("n1").certificate) for _ in range(2))
    assert one.serial_number != two.serial_number


def of_rsa() -> str:
    key = rsa.generate_private_key(65_537, 2_048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "n1")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def with_another_name(request: str) -> str:
    """As if changed on its way: the signature no longer fits."""
    content = x509.load_pem_x509_csr(request.encode()).public_bytes(Encoding.DER).replace(b"n1", b"n2")
    return x509.load_der_x509_csr(content).public_bytes(Encoding.PEM).decode()


@pytest.mark.parametrize(
    "request_",
    ["", "nonsense", "x" * 5_000, of_rsa(), with_another_name(make_request("n1")[1])],
    ids=["nothing", "nonsense", "too long", "another kind of key", "altered"],
)
def test_a_request_that_is_not_one_of_a_node_is_refused(request_: str) -> None:
    with pytest.raises(Invalid) as refused:
        authority().for_node("n1", request_)
    assert refused.value.path == "request"


def test_what_the_request_says_of_itself_does_not_count() -> None:
    issued = authority().for_node("n1", make_request("somebody-else")[1])
    assert names_of(x509_of(issued.certificate))["uri"] == ["roost://node/n1"]


def test_a_fingerprint_is_of_the_certificate_and_not_of_how_it_is_written() -> None:
    made: Authority = make_authority()
    content = x509_of(made.certificate).fingerprint(hashes.SHA256()).hex()
    assert made.fingerprint == content == fingerprint("some words\n" + made.certificate)
