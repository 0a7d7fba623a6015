"""What an engine is to create: devices, and nothing that a document cannot ask for."""

from pathlib import Path
from typing import Any

import pytest

from roost.drivers.container.engine import ContainerEngine, describes_gpus
from roost.drivers.container.request import ContainerHost, container
from roost.model.errors import Invalid
from roost.model.protocol import Run
from roost.model.spec.document import encode_document, read_document

NVIDIA = {"Driver": "nvidia", "DeviceIDs": ["0", "2"], "Capabilities": [["gpu"]]}
CDI = {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0", "nvidia.com/gpu=2"]}


def created(kind: str = "docker", *, has_cdi: bool = False, devices: tuple[int, ...] = ()) -> dict[str, Any]:
    engine = ContainerEngine("/e.sock", kind, "25", has_cdi=has_cdi)
    document = read_document({"name": "a", "image": "a:1", "command": ["x"]})
    run = Run(7, "default/a", 0, 1, encode_document(document), devices=devices)
    return container(ContainerHost("0" * 32, engine=engine), document, run, "/work/7", None).create


@pytest.mark.parametrize(("has_cdi", "request_"), [(False, NVIDIA), (True, CDI)])
def test_a_container_has_the_gpus_of_its_run(has_cdi: bool, request_: dict[str, Any]) -> None:
    assert created(has_cdi=has_cdi, devices=(0, 2))["HostConfig"]["DeviceRequests"] == [request_]
    assert "DeviceRequests" not in created(has_cdi=has_cdi)["HostConfig"]


def test_podman_is_not_asked_for_what_it_would_ignore() -> None:
    assert "DeviceRequests" not in created("podman")["HostConfig"]
    with pytest.raises(Invalid) as caught:
        created("podman", devices=(0,))
    assert caught.value.path == "resources.gpu"


def test_a_container_gets_nothing_of_the_host() -> None:
    host = created()["HostConfig"]
    assert not {"Privileged", "Devices", "PidMode", "IpcMode", "UsernsMode", "Binds", "CgroupParent"} & set(host)
    assert (host["CapDrop"], host["CapAdd"], host["SecurityOpt"]) == (["ALL"], [], ["no-new-privileges"])
    assert [mount["Source"] for mount in host["Mounts"]] == ["/work/7"]


def test_files_that_describe_gpus_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"kind": "vendor.com/net"}')
    assert not describes_gpus([str(tmp_path), str(tmp_path / "none")])
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert describes_gpus([str(tmp_path / "none"), str(tmp_path)])
