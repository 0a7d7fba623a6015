"""What operators set, through the client, against a real server that has no nodes."""

import pytest

from roost.client import ApiError, Client


def test_projects(client: Client) -> None:
    made = client.set_project("team", weight=2, quota={"cpu": "500m", "memory": "4GiB"}, borrow=True)
    assert (made.weight, made.quota, made.borrow) == (2, {"cpu_milli": 500, "memory": 4 << 30}, True)
    assert client.project("team") == made and made in client.projects()
    client.unset_project("team")
    with pytest.raises(ApiError) as caught:
        client.project("team")
    assert caught.value.status == 404


def test_pools(client: Client) -> None:
    made = client.set_pool("ci", strategy="best_fit", overcommit={"cpu": 1.5})
    assert (made.strategy, made.overcommit, made.nodes) == ("best_fit", {"cpu": 1.5}, 0)
    assert client.pool("ci") == made and made in client.pools()
    client.unset_pool("ci")
    assert made not in client.pools()


def test_reservations(client: Client) -> None:
    assert client.reservations() == []
    with pytest.raises(ApiError) as caught:
        client.reserve("r", "team", count=1, start="1h", end="2h")
    assert (caught.value.status, caught.value.path) == (409, "count")
    with pytest.raises(ApiError) as caught:
        client.reserve("r", "team", nodes=["nobody"], start="soon")
    assert (caught.value.status, caught.value.path) == (422, "start")
    with pytest.raises(ApiError) as caught:
        client.cancel_reservation("r")
    assert caught.value.status == 404


def test_lists_go_over_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.client.client.PAGE", 2)
    for number in range(5):
        client.set_project(f"p{number}")
    assert [each.name for each in client.projects() if each.is_set] == [f"p{number}" for number in range(5)]
