"""Images from a real registry, through server and agent: how far they are, why they do not come, and who has them."""

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from roost_lab.bench.product import Product
from roost_lab.components.docker import IMAGE
from roost_lab.components.ports import free_port
from roost_lab.components.registry import PASSWORD, USER, Registry, SlowDoor

from roost.schema.work import InstanceDetail
from tests.components.docker import shared_engine
from tests.components.registry import shared_registry
from tests.e2e.test_agents import instance

LARGE = 4 << 20  # bytes that cannot be compressed
RATE = 400_000  # a second: ten seconds for all of them


@pytest.fixture(scope="module")
def registry() -> Registry:
    made = shared_registry()
    engine = shared_engine()
    made.push(engine, IMAGE, f"{made.address}/team/small:1")
    for name in ("large", "other"):
        engine.import_image(f"docker.io/library/{name}:1", os.urandom(LARGE))
        made.push(engine, f"{name}:1", f"{made.address}/team/{name}:1")
        engine.client.call("DELETE", f"/images/{name}:1?force=true")
    return made


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOST_AGENT_DOCKER", f"unix://{shared_engine().socket}")
        with Product(agents=1, cpu="8", options=("--lease", "3000")) as product:
            product.client.secrets.set_value("default", "registry", PASSWORD.encode())
            product.client.secrets.set_value("default", "wrong", b"other")
            yield product


def submit(product: Product, name: str, image: str, secret: str = "registry", **fields: Any) -> None:
    login = {"user": USER, "password": {"secret": secret}}
    document = {"name": name, "image": image, "command": "true", "resources": {"cpu": "100m"}, "retries": 0}
    product.client.workloads.submit(document | {"container": {"network": "none", "registry": login}} | fields)


def ended(product: Product, name: str) -> InstanceDetail:
    product.client.workloads.wait([("default", name)], timeout_s=120)
    return product.client.instances.get("default", name, 0)


def test_a_slow_pull_says_how_far_it_is(product: Product, registry: Registry) -> None:
    door = SlowDoor(registry.address, RATE)
    try:
        submit(product, "slow", f"{door.address}/team/large:1")

        def is_on_the_way() -> bool:
            percent = instance(product, "slow").pulling
            return percent is not None and 0 < percent < 100

        product.wait_until(is_on_the_way)
        seen = product.client.instances.get("default", "slow", 0)
        assert seen.state == "placed" and seen.message.startswith("pulling ")
        assert seen.story[-1].message.startswith("pulling ")
        door.open.set()
        found = ended(product, "slow")
    finally:
        door.close()
    assert found.state == "succeeded", found.message
    assert found.pulling is None and found.image.startswith("sha256:")
    texts = [line.message for line in found.story]
    assert any(text.startswith("accepted by the agent, which fetched its image in ") for text in texts), texts
    assert not any("pulling" in text for text in texts), "progress is not stored"


def test_a_cancelled_pull_leaves_nothing(product: Product, registry: Registry) -> None:
    door = SlowDoor(registry.address, RATE // 10)
    try:
        submit(product, "given-up", f"{door.address}/team/other:1")
        product.wait_until(lambda: instance(product, "given-up").pulling is not None)
        product.client.workloads.cancel("default", "given-up")
        assert ended(product, "given-up").state == "cancelled"
    finally:
        door.close()
    assert not [item for item in shared_engine().containers() if "given-up" in str(item["Labels"])]


def test_the_decision_says_that_the_node_has_the_image(product: Product, registry: Registry) -> None:
    image = f"{registry.address}/team/small:1"
    submit(product, "first", image)
    first = ended(product, "first")
    assert first.decision is not None and not first.decision.candidates[0].has_image

    numbers = count()

    def is_known() -> bool:
        name = f"again-{next(numbers)}"
        submit(product, name, image)
        again = ended(product, name)
        return again.decision is not None and again.decision.candidates[0].has_image

    product.wait_until(is_known)


@pytest.mark.parametrize(
    ("name", "image", "secret", "problem"),
    [
        ("denied", "{address}/team/denied:1", "wrong", "registry_denied"),
        ("absent", "{address}/team/absent:1", "registry", "image_not_found"),
        ("away", "127.0.0.1:{port}/team/small:1", "registry", "registry_unreachable"),
    ],
)
def test_an_image_that_does_not_come_says_why(
    product: Product, registry: Registry, name: str, image: str, secret: str, problem: str
) -> None:
    submit(product, name, image.format(address=registry.address, port=free_port()), secret, retries=1)
    found = ended(product, name)
    assert (found.state, found.attempt) == ("failed", 2 if name == "away" else 1)
    assert found.reason is not None and problem in str(found.reason.params)
    assert not [item for item in shared_engine().containers() if name in str(item["Labels"])]
