"""What operators set, through the client, against a real server that has no nodes."""

import pytest

from roost.client import ApiError, Client


def test_projects(client: Client) -> None:
    made = client.projects.set("team", weight=2, quota={"cpu": "500m", "memory": "4GiB"}, borrow=True)
    assert (made.weight, made.quota, made.borrow) == (2, {"cpu_milli": 500, "memory": 4 << 30}, True)
    assert client.projects.get("team") == made and made in client.projects.list()
    client.projects.delete("team")
    with pytest.raises(ApiError) as caught:
        client.projects.get("team")
    assert caught.value.status == 404


def test_pools(client: Client) -> None:
    made = client.pools.set("ci", strategy="best_fit", overcommit={"cpu": 1.5})
    assert (made.strategy, made.overcommit, made.nodes) == ("best_fit", {"cpu": 1.5}, 0)
    assert client.pools.get("ci") == made and made in client.pools.list()
    client.pools.delete("ci")
    assert made not in client.pools.list()


def test_reservations(client: Client) -> None:
    assert client.reservations.list() == []
    with pytest.raises(ApiError) as caught:
        client.reservations.create("r", "team", count=1, start="1h", end="2h")
    assert (caught.value.status, caught.value.path) == (409, "count")
    with pytest.raises(ApiError) as caught:
        client.reservations.create("r", "team", nodes=["nobody"], start="soon")
    assert (caught.value.status, caught.value.path) == (422, "start")
    with pytest.raises(ApiError) as caught:
        client.reservations.delete("r")
    assert caught.value.status == 404


def test_lists_go_over_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.client.namespace.PAGE", 2)
    for number in range(5):
        client.projects.set(f"p{number}")
    assert [project.name for project in client.projects.list() if project.is_set] == [
        f"p{number}" for number in range(5)
    ]
