"""What a document says about containers: what it means, and each refusal with its path."""

from typing import Any

import pytest

from roost.model.errors import Invalid
from roost.model.spec.document import check_document, read_document
from roost.model.spec.runs.container import image_key

DIGEST = "sha256:" + "a" * 64


def asked(**fields: Any) -> Any:
    return check_document(read_document({"name": "x", "image": "bb:1"} | fields)).ask


def refusals(**fields: Any) -> list[str]:
    with pytest.raises(Invalid) as caught:
        check_document(read_document({"name": "x", "image": "bb:1"} | fields))
    return [error.path for error in caught.value.every]


@pytest.mark.parametrize(
    "image",
    [
        "busybox",
        "python:3.12",
        "library/a_b-c.d:V1.2",
        "localhost:5000/x",
        f"r.example/a/b/c:1@{DIGEST}",
        "[::1]:5000/a",
    ],
)
def test_references_of_images(image: str) -> None:
    assert (asked(image=image).image, asked(image=image).driver) == (image, "container")


@pytest.mark.parametrize(
    "image",
    [
        "Upper", "a:", ":1", "a//b", "../a", "a@sha256:12", f"a@{DIGEST}x", "a b", "a:1:2", "/a", "a/", "a:-x", "http://a/b",
        "a?b", "a#b", "a%2e", "-a", "a:" + "x" * 129, f"sha256:{'a' * 64}@", "a\nb",
    ],
)  # fmt: skip
def test_other_references_are_refused(image: str) -> None:
    assert refusals(image=image) == ["image"]


@pytest.mark.parametrize(
    "fields, path",
    [
        ({"entrypoint": ["a"]}, "container.entrypoint"),
        ({"entrypoint": [""]}, "container.entrypoint[0]"),
        ({"user": "root"}, "container.user"),
        ({"user": "0:0:0"}, "container.user"),
        ({"user": "4294967295"}, "container.user"),
        ({"workdir": "a"}, "container.workdir"),
        ({"workdir": "/a/../b"}, "container.workdir"),
        ({"capabilities": ["SYS_ADMIN"]}, "container.capabilities[0]"),
        ({"pull": "often"}, "container.pull"),
        ({"network": "container:other"}, "container.network"),
        ({"privileged": True}, "container.privileged"),
        ({"registry": {"user": "u", "password": "plain"}}, "container.registry.password"),
        ({"registry": {"user": "u", "password": {"secret": "a/b"}}}, "container.registry.password.secret"),
    ],
)
def test_blocks_that_are_refused(fields: dict[str, Any], path: str) -> None:
    command = ["x"] if path.endswith("[0]") and "entrypoint" in path else "x"
    assert refusals(container=fields, command=command) == [path]


@pytest.mark.parametrize(
    "volumes, path",
    [
        ({"/etc": "/x"}, "volumes"),
        ({"../a": "/x"}, "volumes"),
        ({"a": "x"}, "volumes.a"),
        ({"a": "/"}, "volumes.a"),
        ({"a": "/proc/1"}, "volumes.a"),
        ({"a": "/roost/x"}, "volumes.a"),
        ({"a": "/x:rw,z"}, "volumes.a"),
        ({"a": {"to": "/x/../../etc"}}, "volumes.a.to"),
        ({"a": {"to": "/x", "source": "/etc"}}, "volumes.a.source"),
        ({"a": "/x", "b": "/x"}, "volumes.b"),
        ({f"v{number}": f"/{number}" for number in range(17)}, "volumes"),
    ],
)
def test_volumes_that_are_refused(volumes: dict[str, Any], path: str) -> None:
    assert refusals(volumes=volumes) == [path]


def test_a_node_has_to_offer_volumes_as_they_are_used() -> None:
    assert asked(volumes={"b": "/b", "a": {"to": "/a", "read_only": True}}).volumes == ("a", "b:rw")


def test_what_is_for_containers_needs_an_image() -> None:
    assert refusals(image="", command="x", container={}, volumes={"a": "/a"}) == ["container", "volumes"]
    assert refusals(kind="vm") == ["image", "vm"]


@pytest.mark.parametrize(
    "image, same",
    [
        ("python", "docker.io/library/python:latest"),
        ("team/app:1", "docker.io/team/app:1"),
        ("localhost/app:1", "localhost/app:1"),
        ("r.example:5000/app", "r.example:5000/app:latest"),
        (f"python:3@sha256:{'0' * 64}", f"docker.io/library/python@sha256:{'0' * 64}"),
    ],
)
def test_references_of_one_image_have_one_key(image: str, same: str) -> None:
    assert image_key(image) == image_key(same) < 1 << 63
    assert image_key(image) != image_key("python:2")
