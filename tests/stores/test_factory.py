"""A store is opened by its URL. What is wrong with a URL is reported without what is secret in it."""

from pathlib import Path

import pytest

from roost.model.errors import Invalid
from roost.ports.store import Change
from roost.stores.etcd.store import EtcdStore
from roost.stores.factory import PostgresPlace, open_store, read_place
from roost.stores.memory import MemoryStore
from roost.stores.postgres.store import PostgresStore
from roost.stores.sqlite.store import SqliteStore
from tests.stores.contract import must

SECRET = "hush-4711"


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("memory:", MemoryStore, "memory"),
        ("memory", MemoryStore, "memory"),
        ("/var/lib/roost", SqliteStore, "SQLite in /var/lib/roost"),
        ("./memory", SqliteStore, "SQLite in memory"),
        ("sqlite:/var/lib/roost", SqliteStore, "SQLite in /var/lib/roost"),
        ("sqlite:///var/lib/roost", SqliteStore, "SQLite in /var/lib/roost"),
        (f"postgresql://me:{SECRET}@db-1:5433/roost", PostgresStore, "PostgreSQL db-1:5433/roost"),
        (f"postgres://me:{SECRET}@a,b/roost?schema=mine", PostgresStore, "PostgreSQL a,b/roost, schema mine"),
        (f"etcd://me:{SECRET}@h1,h2:99/deep/er", EtcdStore, "etcd h1:2379,h2:99/deep/er"),
        ("ETCD://h1", EtcdStore, "etcd h1:2379/roost"),
    ],
)
def test_every_url_opens_its_store(url: str, kind: type, message: str) -> None:
    assert isinstance(open_store(url), kind)
    assert str(read_place(url)) == message


def test_the_file_itself_names_its_directory(tmp_path: Path) -> None:
    assert str(read_place(f"sqlite:{tmp_path}/roost.db")) == f"SQLite in {tmp_path}/roost.db", "it could be a directory"
    (tmp_path / "roost.db").touch()
    assert str(read_place(f"sqlite:{tmp_path}/roost.db")) == str(read_place(str(tmp_path))) == f"SQLite in {tmp_path}"


def test_the_schema_is_taken_out_and_other_options_stay_as_they_are() -> None:
    place = read_place("postgresql://me@db/roost?sslmode=require&schema=mine&host=%2Ftmp")
    assert isinstance(place, PostgresPlace)
    assert (place.dsn, place.schema) == ("postgresql://me@db/roost?sslmode=require&host=%2Ftmp", "mine")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "this is a directory, sqlite:DIRECTORY, memory:"),
        ("sqlite:", "names the data directory"),
        ("sqlite", "names the data directory"),
        ("memory:here", "nothing is kept"),
        (f"mysql://me:{SECRET}@db/roost", "'mysql' is no store Roost knows"),
        (f"postgresql://me:{SECRET}/x@db/roost", "%2F"),
        (f"postgresql://me:{SECRET}@db:port/roost", "a port is a number"),
        (f"postgresql://me:{SECRET}@db/roost?schema=No-Name", "small letters"),
        (f"postgresql://me:{SECRET}@db/roost?schema=a&schema=b", "more than once"),
        (f"etcd://me:{SECRET}/x@h1:2379/roost", "%2F"),
        (f"etcd://me:{SECRET}@x@h1:2379/roost", "%40"),
        (f"etcd://me:{SECRET}", "%2F"),
        (f"etcd://me:{SECRET}@h1:port/roost", "h1:port is no host:port"),
        (f"etcd://me:{SECRET}@/roost", "an empty host is no host:port"),
        (f"etcd://me:{SECRET}@h1/roost?cert=x", "cert and key go together"),
        (f"etcd://me:{SECRET}@h1/roost?colour=red", "colour is not known"),
        (f"etcd://me:{SECRET}@[::1/roost", "is not etcd://"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        open_store(url)
    assert refused.value.path == "store"
    assert message in refused.value.message
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None, "a traceback would show the URL"


async def test_what_is_opened_is_a_store(tmp_path: Path) -> None:
    for _ in range(2):
        store = open_store(f"sqlite:{tmp_path}")
        epoch = await must(store).lead("test")
        await must(store).commit(epoch, [Change("node", f"n{epoch}", b"1")])
        names = sorted(record.key for record in (await must(store).load()).records)
        await store.close()
    assert names == ["n1", "n2"]
