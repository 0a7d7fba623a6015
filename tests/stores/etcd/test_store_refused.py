"""etcd with certificates, with users, without room, and its URL: what is refused is reported in plain words."""

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from roost.ports.store import Snapshot, Unavailable
from roost.stores.etcd.store import EtcdStore
from roost.stores.etcd.url import EtcdPlace, Tls, parse_etcd_url
from tests.components.etcd import Cluster, shared_cluster
from tests.stores.contract import must, put, refusal
from tests.stores.etcd.test_store import new_prefix
from tests.stores.shared import reported

# Certificates


class Authority:
    """A certificate authority that lives as long as a test."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = (
            self._builder(self._name, self._key)
            .add_extension(constraint, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, folder: Path, name: str) -> None:
        """`<name>.pem` and `<name>.key`, good for both sides: etcd is a client of itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.add_extension(uses, critical=False).sign(self._key, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        builder = x509.CertificateBuilder(subject_name=subject, issuer_name=self._name, public_key=key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - day).not_valid_after(now + day)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    ours, foreign = Authority("ours"), Authority("foreign")
    for name in ("server", "client"):
        ours.issue(folder, name)
    foreign.issue(folder, "foreign")
    for name, authority in (("ca", ours), ("foreign-ca", foreign)):
        (folder / f"{name}.pem").write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
    return folder


@pytest.fixture(scope="module")
def locked(certificates: Path) -> Iterator[Cluster]:
    with Cluster(tls=certificates) as cluster:
        yield cluster


async def test_both_sides_show_certificates(locked: Cluster, certificates: Path) -> None:
    message = "&".join(f"{name}={certificates / file}" for name, file in TLS_FILES.items())
    hosts = ",".join(endpoint.replace("127.0.0.1", "localhost") for endpoint in locked.endpoints)
    store = EtcdStore(parse_etcd_url(f"etcd://{hosts}/roost?{message}"))
    assert await must(store).commit(await must(store).lead("server-1"), [put("1")]) == 1
    assert await must(store).load() == Snapshot(1, [put("1")])
    assert (await reported(store.follow(1))).lead.identity == "server-1"
    await store.close()


TLS_FILES = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ca": "foreign-ca.pem", "cert": "client.pem", "key": "client.key"}, "TLS failed"),
        ({"ca": "ca.pem", "cert": "foreign.pem", "key": "foreign.key"}, "certificate"),
        ({"ca": "ca.pem"}, "certificate"),
        ({"ca": "nowhere.pem"}, "ca cannot be read"),
        ({}, "does it want TLS"),
    ],
    ids=["foreign-server", "foreign-client", "no-certificate", "no-file", "no-tls"],
)
async def test_a_wrong_certificate_is_reported(
    locked: Cluster, certificates: Path, files: dict[str, str], message: str
) -> None:
    paths = [certificates / files[name] if name in files else None for name in ("ca", "cert", "key")]
    store = EtcdStore(EtcdPlace(locked.endpoints, tls=Tls(*paths) if files else None), 0.5)
    error = await refusal(must(store).load())
    assert isinstance(error, Unavailable) and message in str(error), error
    await store.close()


# Users


async def test_users_and_what_they_may(certificates: Path) -> None:
    with Cluster(members=1) as cluster:
        for message in (
            "user add root:secret",
            "user add roost:secret",
            "role add roost",
            "role grant-permission --prefix=true roost readwrite /roost/",
            "user grant-role roost roost",
            "auth enable",
        ):
            cluster.ctl(*message.split())
        store = EtcdStore(EtcdPlace(cluster.endpoints, user="roost", password="secret"))
        epoch = await must(store).lead("server-1")
        assert await must(store).commit(epoch, [put("1")]) == 1
        for message in ("--user=root:secret auth disable", "auth enable"):  # which makes all tokens void
            cluster.ctl(*message.split())
        assert await must(store).commit(epoch, [put("2")]) == 2
        assert (await reported(store.follow(2))).revision == 2
        await store.close()
        for prefix, user, password, text in (
            ("/roost", "roost", "wrong", "refuses the user or the password"),
            ("/roost", "", "", "asks for a user"),
            ("/other", "roost", "secret", "may not read and write the prefix"),
        ):
            store = EtcdStore(EtcdPlace(cluster.endpoints, prefix, user=user, password=password))
            error = await refusal(must(store).load())
            assert isinstance(error, Unavailable) and text in str(error), error
            await store.close()


async def test_a_user_where_there_are_none_is_reported() -> None:
    store = EtcdStore(EtcdPlace(shared_cluster().endpoints, user="roost", password="secret"))
    error = await refusal(must(store).load())
    assert isinstance(error, Unavailable) and "leave user and password out" in str(error)
    await store.close()


# Room


async def test_an_etcd_that_is_full_says_what_to_do() -> None:
    with Cluster(members=1, flags=(f"--quota-backend-bytes={8 << 20}",)) as cluster:
        store = EtcdStore(EtcdPlace(cluster.endpoints))
        epoch = await must(store).lead("server-1")
        for number in range(100):
            outcome = await store.commit(epoch, [put(str(number), b"x" * 500_000)])
            if isinstance(outcome, Unavailable):
                assert "alarm disarm" in str(outcome)
                break
        else:
            raise AssertionError("it was never full")
        snapshot = await must(store).load()
        assert snapshot.revision == len(snapshot.records) == number
        await store.close()


async def test_fewer_operations_than_configured_is_reported_and_can_be_set() -> None:
    with Cluster(members=1, flags=("--max-txn-ops=10",)) as cluster:
        store = EtcdStore(EtcdPlace(cluster.endpoints))
        error = await refusal(
            must(store).commit(await must(store).lead("server-1"), [put(str(index)) for index in range(50)])
        )
        assert isinstance(error, Unavailable) and "--max-txn-ops" in str(error)
        await store.close()
        store = EtcdStore(EtcdPlace(cluster.endpoints, operations=10))
        assert (
            await must(store).commit(await must(store).lead("server-1"), [put(str(index)) for index in range(50)]) == 1
        )
        assert len((await must(store).load()).records) == 50
        await store.close()


# Prefixes and URLs


async def test_prefixes_do_not_see_each_other() -> None:
    prefix = new_prefix()
    stores = [
        EtcdStore(EtcdPlace(shared_cluster().endpoints, name)) for name in (prefix, prefix + "2", prefix + "/inside")
    ]
    received = [store.follow(0) for store in stores]
    for number, store in enumerate(stores):
        assert (await reported(received[number])).lead.epoch == 0
        assert await must(store).commit(await must(store).lead(f"server-{number}"), [put(str(number))]) == 1
    for number, store in enumerate(stores):
        assert await must(store).load() == Snapshot(1, [put(str(number))])
        update = await reported(received[number])
        while update.revision == 0:
            update = await reported(received[number])
        assert update.lead.identity == f"server-{number}" and list(update.changes) == [put(str(number))]
        await store.close()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("etcd://h1", EtcdPlace(("h1:2379",))),
        ("etcd://h1:1,h2:2/", EtcdPlace(("h1:1", "h2:2"))),
        ("etcd://[::1]:4,[::2]/a/b/", EtcdPlace(("[::1]:4", "[::2]:2379"), "/a/b")),
        ("etcd://me:a%40b@h/x", EtcdPlace(("h:2379",), "/x", user="me", password="a@b")),
        ("etcd://h?ca=/c.pem", EtcdPlace(("h:2379",), tls=Tls(Path("/c.pem")))),
        ("etcd://h?tls=true", EtcdPlace(("h:2379",), tls=Tls())),
        ("etcd://h?compact=false&operations=1000", EtcdPlace(("h:2379",), compact=False, operations=1000)),
    ],
)
def test_a_url_says_where_it_is(url: str, place: EtcdPlace) -> None:
    assert parse_etcd_url(url) == place


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://h", "not with etcd://"),
        ("etcd://", "an empty host"),
        ("etcd://h:1,,h:2", "an empty host"),
        ("etcd://me@h:port", "h:port is no host:port"),
        ("etcd://me@h:99999", "no host:port"),
        ("etcd://h?cert=/c.pem", "cert and key go together"),
        ("etcd://h?tls=false&ca=/c.pem", "tls=false, and yet"),
        ("etcd://h?compact=1", "neither true nor false"),
        ("etcd://h?operations=1", "no number from 2"),
        ("etcd://h?color=red", "color is not known"),
    ],
)
def test_a_wrong_url_is_refused_with_words(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        parse_etcd_url(url)
