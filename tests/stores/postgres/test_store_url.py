"""The URL of a PostgreSQL store: what is taken, what is refused, and a password that is never shown."""

import asyncio
import datetime
import ipaddress
import shutil
import socket
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from roost_lab.components.postgres import Postgres, running

from roost.ports.store import Damaged, StoreError, StoreFailure, Unavailable
from roost.stores.postgres import connection as postgres_connection
from roost.stores.postgres.store import PostgresStore
from tests.stores.contract import must, put, refusal
from tests.stores.shared import PATIENCE_S, reported

PASSWORD = "not-to-be-seen-4711"  # of the role `guarded`; all others are trusted


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running() as server:
        yield server


@pytest.fixture
async def psql(server: Postgres) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.dsn)
    yield connection
    await connection.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which no process listens, or can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def message_of(url: str) -> str:
    store = PostgresStore(url)
    error = await refusal(must(store).load())
    assert isinstance(error, Unavailable)
    assert isinstance(await refusal(must(store).lead("server-1")), Unavailable)
    await store.close()
    assert PASSWORD not in repr(store) + repr(error)
    return str(error)


async def test_what_keeps_us_out_is_reported_without_the_password(
    server: Postgres, psql: asyncpg.Connection, closed_port: int
) -> None:
    await psql.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")
    here = f"127.0.0.1:{server.port}"
    assert "refused the user" in await message_of(f"postgresql://guarded:{PASSWORD}wrong@{here}/postgres")
    assert "has no such database" in await message_of(f"postgresql://postgres:{PASSWORD}@{here}/nowhere")
    assert "may not do this" in await message_of(f"postgresql://guarded:{PASSWORD}@{here}/postgres")
    assert "check that it runs" in await message_of(f"postgresql://guarded:{PASSWORD}@127.0.0.1:{closed_port}/postgres")
    assert "check" in await message_of(f"postgresql://guarded:{PASSWORD}@{here}/postgres?sslmode=require")

    await psql.execute("CREATE SCHEMA roost AUTHORIZATION guarded")
    store = PostgresStore(f"postgresql://guarded:{PASSWORD}@{here}/postgres")
    assert await must(store).commit(await must(store).lead("server-1"), [put("1")]) == 1
    assert PASSWORD not in repr(store) and here in repr(store)
    await store.close()


async def test_a_server_that_can_only_be_read_is_not_taken(server: Postgres, psql: asyncpg.Connection) -> None:
    await psql.execute("CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on")
    assert "can only be read" in await message_of(f"postgresql://reader@127.0.0.1:{server.port}/postgres")


async def test_the_first_host_that_answers_is_taken(
    server: Postgres, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connection, "CONNECT_LIMIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = ",".join(f"127.0.0.1:{port}" for port in (closed_port, silent.getsockname()[1], server.port))
        store = PostgresStore(f"postgresql://postgres@{hosts}/postgres", schema="hosts")
        assert await must(store).commit(await must(store).lead("server-1"), [put("1")]) == 1
        await store.close()


async def test_tls_is_used_and_checked_as_the_url_says(
    server: Postgres, psql: asyncpg.Connection, tmp_path: Path
) -> None:
    certificate, key = self_signed("127.0.0.1")
    stranger, _ = self_signed("127.0.0.1")
    (tmp_path / "ca.pem").write_bytes(certificate)
    (tmp_path / "stranger.pem").write_bytes(stranger)
    serve_tls(server, certificate, key)
    url = (
        f"postgresql://postgres:{PASSWORD}@127.0.0.1:{server.port}/postgres?sslmode=verify-full&sslrootcert={tmp_path}"
    )
    async with asyncio.timeout(PATIENCE_S):
        while await psql.fetchval("SHOW ssl") != "on":
            await asyncio.sleep(0.01)

    store = PostgresStore(f"{url}/ca.pem", schema="tls")
    await must(store).lead("server-1")
    assert (await reported(store.follow(0))).lead.identity == "server-1"
    encrypted = (
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'roost'"
    )
    assert await psql.fetchval(encrypted) is True
    await store.close()
    assert "no trusted connection" in await message_of(f"{url}/stranger.pem")


def serve_tls(server: Postgres, certificate: bytes, key: bytes) -> None:
    """Take TLS connections beside the others, from the next one on."""
    data = server._data
    for name, content in {"server.crt": certificate, "server.key": key}.items():
        path = data / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        shutil.chown(path, data.stat().st_uid, data.stat().st_gid)
    with (data / "postgresql.auto.conf").open("a") as settings:
        settings.write("ssl = on\n")
    server._run("pg_ctl", "-D", data, "reload")


def self_signed(address: str) -> tuple[bytes, bytes]:
    """A certificate and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "postgres")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(2100, 1, 1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


async def test_commits_are_durable_whatever_the_role_has_set(server: Postgres, psql: asyncpg.Connection) -> None:
    await psql.execute("CREATE ROLE lazy LOGIN SUPERUSER; ALTER ROLE lazy SET synchronous_commit = off")
    await psql.execute("CREATE SCHEMA lazy; CREATE TABLE lazy.said (words text)")
    store = PostgresStore(f"postgresql://lazy@127.0.0.1:{server.port}/postgres", schema="lazy")
    await must(store).load()
    await psql.execute("""
        CREATE FUNCTION lazy.say() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO lazy.said VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
        CREATE TRIGGER say AFTER UPDATE ON lazy.lead EXECUTE FUNCTION lazy.say()""")
    await must(store).commit(await must(store).lead("server-1"), [put("1")])
    assert {row[0] for row in await psql.fetch("SELECT words FROM lazy.said")} == {"on"}
    await store.close()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (asyncpg.DiskFullError("could not extend file"), Unavailable, "no space left on the server"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), Unavailable, "starting or stopping"),
        (asyncpg.AdminShutdownError("terminating"), Unavailable, "starting or stopping"),
        (asyncpg.TooManyConnectionsError("sorry, too many clients"), Unavailable, "raise max_connections"),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute UPDATE"), Unavailable, "can only be read"),
        (asyncpg.QueryCanceledError("statement timeout"), Unavailable, "did not answer in time"),
        (asyncpg.UndefinedTableError("relation does not exist"), Unavailable, "42P01: relation does not exist"),
        (asyncpg.DataCorruptedError("invalid page in block 7"), Damaged, "invalid page in block 7"),
        (asyncpg.InterfaceError("connection is closed"), Unavailable, "check that it runs"),
        (ConnectionResetError("by peer"), Unavailable, "check that it runs"),
        (TimeoutError(), Unavailable, "did not answer in time"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_goes_wrong_is_reported_in_a_message_to_act_on(
    error: Exception, kind: type[StoreFailure], message: str
) -> None:
    explained = postgres_connection.PostgresServer("postgresql://roost:secret@db-1,db-2/roost", "roost").explain(error)
    assert isinstance(explained, StoreError) and type(explained.failure) is kind
    assert message in str(explained) and "PostgreSQL db-1,db-2/roost" in str(explained)
    assert "secret" not in str(explained) and explained.__cause__ is error


def test_a_defect_stays_what_it_is() -> None:
    defect = AssertionError("a defect")
    assert postgres_connection.PostgresServer("postgresql://db/roost", "roost").explain(defect) is defect


@pytest.mark.parametrize(
    "url",
    [
        "mysql://user:secret@host/roost",
        "host/roost",
        "postgresql://user:sec/ret@host/roost",
        "postgresql://user:sec?ret@host/roost",
        "postgresql://user:sec#ret@host/roost",
        "postgresql://user:sec@ret@host/roost",
        "postgresql://user:secret@host:port/roost",
        "postgresql://user:secret@[host/roost",
        "postgresql://user:secret@host/roost?sslmode",
    ],
)
def test_a_url_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ValueError, match="postgresql://USER:PASSWORD@HOST:PORT/DATABASE") as caught:
        PostgresStore(url)
    answer = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value.__cause__)
    assert "sec" not in answer and "ret" not in answer


@pytest.mark.parametrize("schema", ["", "Roost", "a b", "pg_roost", 'x"; DROP TABLE y', "s" * 64])
def test_a_schema_has_a_plain_name(schema: str) -> None:
    with pytest.raises(ValueError, match="small letters"):
        PostgresStore("postgresql://host/roost", schema)
