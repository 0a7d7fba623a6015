"""How an agent is configured: flags, environment, and what is refused before anything begins."""

import os
import re
from pathlib import Path

import pytest

from roost.agent import config
from roost.agent.config import not_offered, read_identity, read_life, read_options
from roost.agent.host.fingerprint import facts
from roost.model.errors import Invalid

SERVER = ["--server", "roost.example:8421"]


def test_flags_become_settings(tmp_path: Path) -> None:
    flags = [
        *SERVER, "--name", "gpu-1.example", "--dir", str(tmp_path), "--label", "disk=nvme", "--label", "a=b=c",
        "--resource", "licence=3", "--zone", "a", "--rack", "r1", "--region", "eu", "--pool", "ci", "--cpu", "500m",
        "--memory", "2GiB", "--disk", "10G", "--slice", "2/4", "--address", "gpu-1.example",
        "--input-cache", "1GiB",
    ]  # fmt: skip
    options = read_options(flags, {})
    assert (options.server, options.name) == ("roost.example:8421", "gpu-1.example")
    wishes = options.wishes
    assert (options.number, options.share, options.input_cache_bytes) == (2, 4, 1 << 30)
    assert (wishes.zone, wishes.rack, wishes.region, wishes.pool) == ("a", "r1", "eu", "ci")
    assert wishes.labels == {"disk": "nvme", "a": "b=c"}
    assert wishes.resources == {"cpu": 500, "memory": 2 << 30, "disk": 10**10, "licence": 3}
    assert options.directory == str(tmp_path)
    assert (wishes.address, facts(str(tmp_path), wishes).address) == ("gpu-1.example", "gpu-1.example")


def test_omitted_options_mean_as_found() -> None:
    options = read_options(SERVER, {})
    assert (options.wishes.resources, options.wishes.pool, options.share) == ({}, "default", 1)
    assert options.input_cache_bytes == 10 << 30


def test_the_environment_is_the_second_choice(tmp_path: Path) -> None:
    environment = {"ROOST_AGENT_SERVER": "h:1", "ROOST_AGENT_NAME": "n", "ROOST_AGENT_DIR": str(tmp_path)}
    options = read_options([], environment)
    assert (options.server, options.name, options.directory) == ("h:1", "n", str(tmp_path))
    assert read_options(["--name", "m"], environment).name == "m"
    placed = {"ROOST_AGENT_ADDRESS": "10.0.0.7"}
    assert read_options(SERVER, placed).wishes.address == "10.0.0.7"
    assert read_options([*SERVER, "--address", "fd00::7"], placed).wishes.address == "fd00::7"
    assert read_options(SERVER, {}).wishes.address == ""


def test_gpus_and_taints_by_flag_or_environment() -> None:
    flags = [*SERVER, "--gpu", "2", "--gpu-model", "NVIDIA T4", "--taint", "gpu", "--taint", "spot=yes:soft"]
    wishes = read_options(flags, {}).wishes
    assert (wishes.resources, wishes.gpu_model) == ({"gpu": 2_000}, "NVIDIA T4")
    assert wishes.taints == ("gpu", "spot=yes:soft")
    answer = {"ROOST_AGENT_TAINTS": "gpu, old=yes", "ROOST_AGENT_GPU": "1", "ROOST_AGENT_GPU_MODEL": "T4"}
    wishes = read_options(SERVER, answer).wishes
    assert (wishes.resources, wishes.gpu_model, wishes.taints) == ({"gpu": 1_000}, "T4", ("gpu", "old=yes"))


@pytest.mark.parametrize(
    "flags, field",
    [
        (["--server", "nobody"], "--server"),
        (["--server", "h:99999"], "--server"),
        ([*SERVER, "--name", "a b"], "--name"),
        ([*SERVER, "--label", "nothing"], "--label"),
        ([*SERVER, "--cpu", "many"], "--cpu"),
        ([*SERVER, "--memory", "-1"], "--memory"),
        ([*SERVER, "--resource", "licence=some"], "--resource licence"),
        ([*SERVER, "--slice", "5/4"], "--slice"),
        ([*SERVER, "--slice", "0/4"], "--slice"),
        ([*SERVER, "--pool", "a/b"], "--pool"),
        ([*SERVER, "--address", "http://here/"], "--address"),
        ([*SERVER, "--address", "a b"], "--address"),
        ([*SERVER, "--address", "a" * 257], "--address"),
        ([*SERVER, "--gpu", "many"], "--gpu"),
        ([*SERVER, "--gpu", "1.5"], "--gpu"),
        ([*SERVER, "--gpu", "257"], "--gpu"),
        ([*SERVER, "--gpu-model", "a\nb"], "--gpu-model"),
        ([*SERVER, "--taint", "gpu:NoSchedule"], "--taint[0]"),
        ([*SERVER, "--taint", "gpu", "--taint", "=x"], "--taint[1]"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_flag(flags: list[str], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_options(flags, {})
    assert refused.value.path == field


def test_without_a_server_the_certificates_file_says_where_it_is() -> None:
    assert read_options([], {}).server == ""


def test_a_machine_keeps_its_identity(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    identity = read_identity(str(tmp_path / "a"))
    assert len(identity) == 32
    assert read_identity(str(tmp_path / "a")) == identity
    assert read_identity(str(tmp_path / "b")) != identity
    (tmp_path / "a" / "identity").write_text("")
    assert len(read_identity(str(tmp_path / "a"))) == 32, "one that was cut off is drawn again"


def test_lives_of_a_machine_are_counted(tmp_path: Path) -> None:
    first = read_life(str(tmp_path), os.getpid())
    assert (first, read_life(str(tmp_path), os.getpid())) == (1, 1)
    assert read_life(str(tmp_path), 1) == 2
    (tmp_path / "life").write_text("nonsense")
    assert read_life(str(tmp_path), 1) == 1


def test_images_and_bridges_of_virtual_machines_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "joins_bridges", lambda: True)
    options = read_options([*SERVER, "--dir", "/a", "--vm-image", "one=disk", "--vm-bridge", "lan=br0"], {})
    assert (options.machines.images, options.machines.bridges) == ({"one": str(tmp_path / "disk")}, {"lan": "br0"})
    assert (options.machines.directory, options.qemu) == ("/a/machines", "auto")
    variables = {"ROOST_AGENT_VM_IMAGES": "one=disk, two=disk", "ROOST_AGENT_QEMU": "none"}
    options = read_options(SERVER, variables)
    assert (sorted(options.machines.images), options.qemu) == (["one", "two"], "none")


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--vm-image", "one"], "--vm-image: this is like NAME=VALUE"),
        (["--vm-image", "a b=/bin/sh"], "--vm-image"),
        (["--vm-image", "a=/bin/sh", "--vm-image", "a=/bin/ls"], "--vm-image: two are called a"),
        (["--qemu", "/absent"], "--qemu: this is a program, auto or none"),
    ],
)
def test_what_virtual_machines_cannot_have_is_refused(
    flags: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "joins_bridges", lambda: True)
    with pytest.raises(Invalid, match=re.escape(says)):
        read_options([*SERVER, *flags], {})


def test_an_agent_that_cannot_join_bridges_offers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "joins_bridges", lambda: False)
    with pytest.raises(Invalid, match="--vm-bridge: only an agent that is root, or has CAP_NET_ADMIN"):
        read_options([*SERVER, "--vm-bridge", "lan=lo"], {})


def test_an_image_that_is_gone_is_no_reason_to_have_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is restarted would not come back, and with it what runs there."""
    monkeypatch.setattr(config, "joins_bridges", lambda: True)
    images = ["--vm-image", "one=/absent", "--vm-image", "two=/dev/null", "--vm-image", "three=/bin/sh"]
    options = read_options([*SERVER, *images, "--vm-bridge", "lan=no-such-bridge"], {})
    assert not_offered(options.machines) == [
        "image one: /absent: No such file or directory",
        "image two: /dev/null: it is no regular file",
        "bridge lan: this machine has no bridge no-such-bridge",
    ]
