"""What an operator can choose, and what is refused before anything is opened."""

from pathlib import Path
from typing import Any

import pytest

from roost.model.errors import Invalid
from roost.server.config import ServerConfig, check_config, from_environment


def config(**given: Any) -> ServerConfig:
    return ServerConfig(**{"data": Path("data"), "admin_token": "secret-admin-token", **given})


def test_the_defaults_are_fine() -> None:
    check_config(config())
    settings = config(strategy="best_fit", lease_ms=20_000, seed=7).settings()
    assert (settings.strategy, settings.lease_ms, settings.lease_margin_ms, settings.seed) == (
        "best_fit",
        20_000,
        2_000,
        7,
    )
    assert (config().settings().backfill_after_ms, config().settings().preempt_margin) == (30_000, 20)
    settings = config(backfill_after_ms=0, preempt_margin=0).settings()
    assert (settings.backfill_after_ms, settings.preempt_margin) == (0, 0)
    assert config(lease_ms=1_000).settings().lease_margin_ms == 200


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [
        ("strategy", "cleverest", "invalid_strategy"),
        ("strategy", "", "invalid_strategy"),
        ("store", "punchcards", "invalid"),
        ("log_level", "loud", "invalid"),
        ("lease_ms", 999, "invalid"),
        ("lease_ms", 600_001, "invalid"),
        ("port", -1, "invalid"),
        ("port", 65_536, "invalid"),
        ("agents_port", 8420, "invalid"),
        ("seed", -1, "invalid"),
        ("backfill_after_ms", -1, "invalid"),
        ("backfill_after_ms", 10**18, "invalid"),
        ("preempt_margin", -1, "invalid"),
        ("preempt_margin", 101, "invalid"),
        ("admin_token", "fifteen-letters", "invalid"),
        ("admin_token", "sixteen letters and a space", "invalid"),
        ("admin_token", "roost_like-an-api-token", "invalid"),
        ("admin_token", "ünïcödé-token", "invalid"),
        ("tls", "perhaps", "invalid"),
        ("tls_cert", Path("alone.pem"), "invalid"),
        ("certificate_ms", 1_000, "invalid"),
        ("advertise", ("https://host",), "invalid"),
    ],
)
def test_what_cannot_work_is_named(setting: str, value: Any, code: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_config(config(**{setting: value}))
    assert (refused.value.path, refused.value.code) == (setting, code)


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Invalid, match="best_fit.*least_loaded.*round_robin"):
        check_config(config(strategy="cleverest"))


def test_tokens_are_not_printed() -> None:
    assert "secret" not in repr(config())


def test_the_environment_can_say_some_of_it() -> None:
    answer = from_environment({"SCHEDULING_STRATEGY": "best_fit", "ROOST_TOKEN": "t", "SCHEDULING": "", "HOME": "x"})
    assert answer == {"strategy": "best_fit", "admin_token": "t"}


@pytest.mark.parametrize(
    "given, encrypted",
    [
        ({}, (False, False)),
        ({"host": "0.0.0.0"}, (True, True)),
        ({"controller_listen": ("0.0.0.0", 8422)}, (False, True)),
        ({"host": "0.0.0.0", "controller_listen": ("127.0.0.1", 8422)}, (True, False)),
        ({"host": "0.0.0.0", "controller_listen": ("0.0.0.0", 8422), "tls": "off"}, (False, False)),
        ({"tls": "on"}, (True, True)),
        ({"tls_cert": Path("c.pem"), "tls_key": Path("k.pem")}, (True, True)),
    ],
)
def test_each_listener_that_other_machines_can_reach_is_encrypted(
    given: dict[str, Any], encrypted: tuple[bool, bool]
) -> None:
    chosen = config(**{"host": "127.0.0.1", **given})
    assert (chosen.encrypts(chosen.host), chosen.encrypts(chosen.controller_host)) == encrypted


@pytest.mark.parametrize(
    ("store", "blobs", "loses"),
    [
        ("sqlite", "", False),
        ("memory", "", False),
        ("postgresql://roost@db/roost", "", True),
        ("etcd://a:2379/roost", "", True),
        ("etcd://a:2379/roost", "/shared/blobs", False),
        ("etcd://a:2379/roost", "s3://bucket/roost", False),
    ],
)
def test_servers_that_share_a_store_and_no_blobs_lose_files(store: str, blobs: str, loses: bool) -> None:
    assert config(store=store, blobs=blobs).loses_files is loses


@pytest.mark.parametrize("blobs", ["s3://", "gs://bucket", "s3://key:secret@bucket"])
def test_a_place_of_blobs_that_cannot_be_is_refused(blobs: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_config(config(blobs=blobs))
    assert refused.value.path == "blobs" and "secret" not in str(refused.value)
